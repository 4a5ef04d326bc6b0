/* Runs kernels on the emulator: a script comes in on standard input, what it asks for goes out on standard output.
 *
 * A script is a sequence of 32-bit little-endian words and raw bytes:
 *
 *   1 SIZE                      allocate SIZE bytes, zeroed and aligned to a page; buffers are numbered from 0
 *   2 BUFFER OFFSET SIZE bytes  copy bytes from the script into a buffer
 *   3 KERNEL N (BUFFER OFFSET)* call a kernel with N pointers; writes packets, instructions, HVX instructions (32 bits)
 *   4 BUFFER OFFSET SIZE        write bytes of a buffer
 *   0                           end
 *
 * The processor's registers C20 to C22 are reserved, and the emulator keeps its counts there: executed packets,
 * instructions and HVX instructions. Assemblers have no names for them, so the transfers are written as words.
 */

typedef unsigned int u32;
typedef unsigned char u8;

extern void *const tvm_ext_kernels[];
extern const u32 tvm_ext_kernel_count;

enum { MAX_BUFFERS = 65536, MAX_ARGUMENTS = 128 };
enum { OP_END, OP_ALLOCATE, OP_WRITE, OP_CALL, OP_READ };
/* Exit codes that tvm_ext/backends/hexagon/emulator.py gives names to. */
enum { BAD_SCRIPT = 90, OUT_OF_MEMORY = 91, BROKEN_PIPE = 92 };

static long system_call(long number, long a, long b, long c, long d, long e, long f)
{
    register long r6 asm("r6") = number;
    register long r0 asm("r0") = a;
    register long r1 asm("r1") = b;
    register long r2 asm("r2") = c;
    register long r3 asm("r3") = d;
    register long r4 asm("r4") = e;
    register long r5 asm("r5") = f;
    asm volatile("trap0(#1)" : "+r"(r0) : "r"(r6), "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5) : "memory");
    return r0;
}

enum { SYS_READ = 63, SYS_WRITE = 64, SYS_EXIT = 94, SYS_MUNMAP = 215, SYS_MMAP = 222 };

void tvm_ext_exit(int code)
{
    for (;;)
        system_call(SYS_EXIT, code, 0, 0, 0, 0, 0);
}

void tvm_ext_write(int file, const void *data, u32 size)
{
    const u8 *from = data;
    while (size) {
        long count = system_call(SYS_WRITE, file, (long)from, (long)size, 0, 0, 0);
        if (count <= 0)
            tvm_ext_exit(BROKEN_PIPE);
        from += count;
        size -= (u32)count;
    }
}

static void read_bytes(void *data, u32 size)
{
    u8 *to = data;
    while (size) {
        long count = system_call(SYS_READ, 0, (long)to, (long)size, 0, 0, 0);
        if (count <= 0)
            tvm_ext_exit(BROKEN_PIPE);
        to += count;
        size -= (u32)count;
    }
}

static u32 word(void)
{
    u32 value;
    read_bytes(&value, sizeof value);
    return value;
}

static u8 *addresses[MAX_BUFFERS];
static u32 sizes[MAX_BUFFERS];
static u32 buffers;

static u8 *place(u32 buffer, u32 offset, u32 size)
{
    if (buffer >= buffers || offset > sizes[buffer] || size > sizes[buffer] - offset)
        tvm_ext_exit(BAD_SCRIPT);
    return addresses[buffer] + offset;
}

/* Gives bytes that are zero and begin at a page; vectors are loaded whole, so two more follow the last byte. */
void *tvm_ext_map(u32 size)
{
    enum { READ_AND_WRITE = 3, PRIVATE_AND_ANONYMOUS = 0x22 };
    long found = system_call(SYS_MMAP, 0, (long)(size + 256), READ_AND_WRITE, PRIVATE_AND_ANONYMOUS, -1, 0);
    if (size + 256 < size || (found < 0 && found > -4096))
        tvm_ext_exit(OUT_OF_MEMORY);
    return (void *)found;
}

void tvm_ext_unmap(void *data, u32 size) { system_call(SYS_MUNMAP, (long)data, (long)(size + 256), 0, 0, 0, 0); }

static void allocate(u32 size)
{
    if (buffers == MAX_BUFFERS)
        tvm_ext_exit(BAD_SCRIPT);
    addresses[buffers] = tvm_ext_map(size);
    sizes[buffers++] = size;
}

static void counts(u32 *into)
{
    register u32 packets asm("r0");
    register u32 instructions asm("r1");
    register u32 vector asm("r2");
    register u32 unused asm("r3");
    /* r1:0 = c21:20, r3:2 = c23:22 */
    asm volatile(".word 0x6814c000\n\t.word 0x6816c002"
                 : "=r"(packets), "=r"(instructions), "=r"(vector), "=r"(unused)
                 :
                 : "memory");
    into[0] = packets;
    into[1] = instructions;
    into[2] = vector;
}

/* Pointers on the stack are packets, so that few are passed where few are taken. */
#define TYPES_8 void *, void *, void *, void *, void *, void *, void *, void *
#define TYPES_32 TYPES_8, TYPES_8, TYPES_8, TYPES_8
#define FROM_8(i) a[i], a[i + 1], a[i + 2], a[i + 3], a[i + 4], a[i + 5], a[i + 6], a[i + 7]
#define FROM_32(i) FROM_8(i), FROM_8(i + 8), FROM_8(i + 16), FROM_8(i + 24)
typedef void (*Few)(void *, void *, void *, void *, void *, void *);
typedef void (*Many)(TYPES_32);
typedef void (*Most)(TYPES_32, TYPES_32, TYPES_32, TYPES_32);

static void call(void)
{
    static void *a[MAX_ARGUMENTS];
    u32 before[3], after[3];
    u32 kernel = word(), count = word();
    if (kernel >= tvm_ext_kernel_count || count > MAX_ARGUMENTS)
        tvm_ext_exit(BAD_SCRIPT);
    for (u32 i = 0; i < count; i++) {
        u32 buffer = word();
        a[i] = place(buffer, word(), 0);
    }
    counts(before);
    if (count <= 6)
        ((Few)tvm_ext_kernels[kernel])(a[0], a[1], a[2], a[3], a[4], a[5]);
    else if (count <= 32)
        ((Many)tvm_ext_kernels[kernel])(FROM_32(0));
    else
        ((Most)tvm_ext_kernels[kernel])(FROM_32(0), FROM_32(32), FROM_32(64), FROM_32(96));
    counts(after);
    for (u32 i = 0; i < 3; i++)
        after[i] -= before[i];
    tvm_ext_write(1, after, sizeof after);
}

void tvm_ext_main(void)
{
    for (;;) {
        u32 operation = word();
        if (operation == OP_END)
            tvm_ext_exit(0);
        else if (operation == OP_ALLOCATE)
            allocate(word());
        else if (operation == OP_CALL)
            call();
        else if (operation == OP_WRITE || operation == OP_READ) {
            u32 buffer = word(), offset = word(), size = word();
            u8 *data = place(buffer, offset, size);
            if (operation == OP_WRITE)
                read_bytes(data, size);
            else
                tvm_ext_write(1, data, size);
        } else
            tvm_ext_exit(BAD_SCRIPT);
    }
}

/* Vectors on the stack need 128 bytes. */
asm(".globl _start\n"
    ".type _start,@function\n"
    "_start:\n"
    "\tr29 = and(r29, #-128)\n"
    "\tcall tvm_ext_main\n");
