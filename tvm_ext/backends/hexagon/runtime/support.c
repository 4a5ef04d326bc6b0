/* What compiled kernels call that neither the processor nor the kernels themselves have: copies, divisions, workspaces.
 *
 * The names are those that LLVM's code generator for Hexagon and TVM's runtime interface give them.
 */

typedef unsigned int u32;
typedef unsigned char u8;
typedef unsigned long long u64;
typedef long long i64;

void tvm_ext_exit(int code);
void tvm_ext_write(int file, const void *data, u32 size);

void *tvm_ext_map(u32 size);
void tvm_ext_unmap(void *data, u32 size);

static int is_aligned(const void *a, const void *b)
{
    return (((u32)a | (u32)b) & 7u) == 0;
}

void *memset(void *to, int value, u32 size)
{
    u8 *bytes = to;
    u64 pattern = (u8)value * 0x0101010101010101ull;
    if (is_aligned(to, to))
        for (; size >= 8; size -= 8, bytes += 8)
            *(volatile u64 *)bytes = pattern;
    while (size--)
        *(volatile u8 *)bytes++ = (u8)value;
    return to;
}

void *memcpy(void *to, const void *from, u32 size)
{
    u8 *target = to;
    const u8 *source = from;
    if (is_aligned(to, from))
        for (; size >= 8; size -= 8, target += 8, source += 8)
            *(volatile u64 *)target = *(const u64 *)source;
    while (size--)
        *(volatile u8 *)target++ = *source++;
    return to;
}

void *memmove(void *to, const void *from, u32 size)
{
    u8 *target = to;
    const u8 *source = from;
    if (target <= source || target >= source + size)
        return memcpy(to, from, size);
    while (size--)
        *(volatile u8 *)(target + size) = source[size];
    return to;
}

void *__hexagon_memcpy_likely_aligned_min32bytes_mult8bytes(void *to, const void *from, u32 size)
{
    return memcpy(to, from, size);
}

/* Integer division, bit by bit. Divisors of 0 give all ones, as nothing here can trap. */

static u64 divide(u64 dividend, u64 divisor, u64 *remainder)
{
    u64 quotient = 0, rest = 0;
    for (int bit = 63; bit >= 0; bit--) {
        u64 carry = rest >> 63;
        rest = (rest << 1) | ((dividend >> bit) & 1);
        if (carry || rest >= divisor) {
            rest -= divisor;
            quotient |= 1ull << bit;
        }
    }
    *remainder = rest;
    return quotient;
}

static u32 divide_word(u32 dividend, u32 divisor, u32 *remainder)
{
    u32 quotient = 0, rest = 0;
    for (int bit = 31; bit >= 0; bit--) {
        u32 carry = rest >> 31;
        rest = (rest << 1) | ((dividend >> bit) & 1);
        if (carry || rest >= divisor) {
            rest -= divisor;
            quotient |= 1u << bit;
        }
    }
    *remainder = rest;
    return quotient;
}

u32 __hexagon_udivsi3(u32 a, u32 b)
{
    u32 rest;
    return divide_word(a, b, &rest);
}

u32 __hexagon_umodsi3(u32 a, u32 b)
{
    u32 rest;
    divide_word(a, b, &rest);
    return rest;
}

static u32 magnitude(int a) { return a < 0 ? 0u - (u32)a : (u32)a; }
static u64 magnitude64(i64 a) { return a < 0 ? 0ull - (u64)a : (u64)a; }

int __hexagon_divsi3(int a, int b)
{
    u32 quotient = __hexagon_udivsi3(magnitude(a), magnitude(b));
    return (int)((a < 0) != (b < 0) ? 0u - quotient : quotient);
}

int __hexagon_modsi3(int a, int b)
{
    u32 rest = __hexagon_umodsi3(magnitude(a), magnitude(b));
    return (int)(a < 0 ? 0u - rest : rest);
}

u64 __hexagon_udivdi3(u64 a, u64 b)
{
    u64 rest;
    return divide(a, b, &rest);
}

u64 __hexagon_umoddi3(u64 a, u64 b)
{
    u64 rest;
    divide(a, b, &rest);
    return rest;
}

i64 __hexagon_divdi3(i64 a, i64 b)
{
    u64 quotient = __hexagon_udivdi3(magnitude64(a), magnitude64(b));
    return (i64)((a < 0) != (b < 0) ? 0ull - quotient : quotient);
}

i64 __hexagon_moddi3(i64 a, i64 b)
{
    u64 rest = __hexagon_umoddi3(magnitude64(a), magnitude64(b));
    return (i64)(a < 0 ? 0ull - rest : rest);
}

/* Workspaces are freed in the reverse order of their allocation; a large one is a mapping of its own. */

enum { SMALL_BYTES = 8u << 20 };
static u8 workspace[SMALL_BYTES] __attribute__((aligned(128)));
static u32 workspace_top;

typedef struct Large {
    struct Large *before;
    u32 size;
    u8 padding[120];
    u8 data[];
} Large;

static Large *last_large;

static void *allocate_large(u64 size)
{
    u64 whole = size + sizeof(Large);
    Large *found = tvm_ext_map(whole < 0xffffff00ull ? (u32)whole : 0xffffffffu);
    found->before = last_large;
    found->size = (u32)whole;
    last_large = found;
    return found->data;
}

static void *allocate_workspace(int device_type, int device, u64 size, int code, int bits)
{
    (void)device_type, (void)device, (void)code, (void)bits;
    u64 rounded = (size + 127u) & ~127ull;
    if (rounded > SMALL_BYTES - workspace_top)
        return allocate_large(rounded);
    void *found = workspace + workspace_top;
    workspace_top += (u32)rounded;
    return found;
}

static int free_workspace(int device_type, int device, void *pointer)
{
    (void)device_type, (void)device;
    if (last_large && pointer == last_large->data) {
        Large *gone = last_large;
        last_large = gone->before;
        tvm_ext_unmap(gone, gone->size);
    } else {
        workspace_top = (u32)((u8 *)pointer - workspace);
    }
    return 0;
}

void *(*__TVMBackendAllocWorkspace)(int, int, u64, int, int) = allocate_workspace;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = free_workspace;

void *TVMBackendAllocWorkspace(int device_type, int device, u64 size, int code, int bits)
{
    return allocate_workspace(device_type, device, size, code, bits);
}

int TVMBackendFreeWorkspace(int device_type, int device, void *pointer)
{
    return free_workspace(device_type, device, pointer);
}

/* Parallel loops run as one task. */

typedef struct {
    void *synchronization;
    int tasks;
} ParallelGroup;

static int launch(int (*body)(int, ParallelGroup *, void *), void *closure, int tasks)
{
    (void)tasks;
    ParallelGroup group = {0, 1};
    return body(0, &group, closure);
}

int (*__TVMBackendParallelLaunch)(int (*)(int, ParallelGroup *, void *), void *, int) = launch;

static u32 length(const char *text)
{
    u32 count = 0;
    while (text[count])
        count++;
    return count;
}

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int count)
{
    tvm_ext_write(2, kind, length(kind));
    tvm_ext_write(2, ": ", 2);
    for (int i = 0; i < count; i++)
        if (parts[i])
            tvm_ext_write(2, parts[i], length(parts[i]));
    tvm_ext_write(2, "\n", 1);
}

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *text)
{
    TVMFFIErrorSetRaisedFromCStrParts(kind, &text, 1);
}
