/* The tile registers of AMX as Intel's manual describes them, for a machine without: each function is one instruction. */
#include <stdint.h>
#include <string.h>

static __thread struct { int configured; int rows[8]; int bytes[8]; uint8_t data[8][16][64]; } tiles;
static long permission = 0;
static int faults = 0;
static long executed = 0;

void emulated_permit(long result) { permission = result; }
int emulated_faults(void) { return faults; }
long emulated_products(void) { return executed; }
int64_t emulated_syscall(int64_t number, int64_t request, int64_t part) {
  return number == 158 && request == 0x1023 && part == 18 ? permission : -1;
}

/* What would be an exception of the processor. */
static int fault(int wrong) {
  if (wrong) __atomic_add_fetch(&faults, 1, __ATOMIC_SEQ_CST);
  return wrong;
}
static int unusable(int tile) { return fault(!tiles.configured || tile < 0 || tile > 7 || !tiles.rows[tile]); }

void emulated_ldtilecfg(const uint8_t* shape) {
  uint16_t bytes[16];
  memcpy(bytes, shape + 16, sizeof bytes);
  int wrong = shape[0] != 1;
  for (int at = 1; at < 16; at++) wrong |= shape[at] != 0;
  for (int at = 0; at < 16; at++) wrong |= at > 7 ? bytes[at] || shape[48 + at] : bytes[at] > 64 || shape[48 + at] > 16;
  if (fault(wrong)) return;
  memset(&tiles, 0, sizeof tiles);
  tiles.configured = 1;
  for (int at = 0; at < 8; at++) tiles.bytes[at] = bytes[at], tiles.rows[at] = shape[48 + at];
}
void emulated_tilerelease(void) { memset(&tiles, 0, sizeof tiles); }
void emulated_tilezero(int tile) {
  if (!unusable(tile)) memset(tiles.data[tile], 0, sizeof tiles.data[tile]);
}
void emulated_tileloadd64(int tile, const uint8_t* from, int64_t stride) {
  if (unusable(tile)) return;
  memset(tiles.data[tile], 0, sizeof tiles.data[tile]);
  for (int row = 0; row < tiles.rows[tile]; row++) memcpy(tiles.data[tile][row], from + row * stride, tiles.bytes[tile]);
}
void emulated_tilestored64(int tile, uint8_t* to, int64_t stride) {
  if (unusable(tile)) return;
  for (int row = 0; row < tiles.rows[tile]; row++) memcpy(to + row * stride, tiles.data[tile][row], tiles.bytes[tile]);
}

#define PRODUCTS(name, left_type, right_type)                                                              \
  void emulated_##name(int sum, int left, int right) {                                                     \
    if (unusable(sum) || unusable(left) || unusable(right)) return;                                        \
    __atomic_add_fetch(&executed, 1, __ATOMIC_RELAXED);                                                    \
    for (int m = 0; m < tiles.rows[sum]; m++)                                                              \
      for (int k = 0; k < tiles.bytes[left] / 4; k++)                                                      \
        for (int n = 0; n < tiles.bytes[sum] / 4; n++) {                                                   \
          int32_t total;                                                                                   \
          memcpy(&total, &tiles.data[sum][m][4 * n], 4);                                                   \
          for (int byte = 0; byte < 4; byte++)                                                             \
            total += (int32_t)(left_type)tiles.data[left][m][4 * k + byte] *                               \
                     (int32_t)(right_type)tiles.data[right][k][4 * n + byte];                              \
          memcpy(&tiles.data[sum][m][4 * n], &total, 4);                                                   \
        }                                                                                                  \
  }
PRODUCTS(tdpbusd, uint8_t, int8_t)
PRODUCTS(tdpbssd, int8_t, int8_t)

static float half(const uint8_t* at) {
  uint32_t bits = (uint32_t)(at[0] | at[1] << 8) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
void emulated_tdpbf16ps(int sum, int left, int right) {
  if (unusable(sum) || unusable(left) || unusable(right)) return;
  __atomic_add_fetch(&executed, 1, __ATOMIC_RELAXED);
  for (int m = 0; m < tiles.rows[sum]; m++)
    for (int k = 0; k < tiles.bytes[left] / 4; k++)
      for (int n = 0; n < tiles.bytes[sum] / 4; n++) {
        float total;
        memcpy(&total, &tiles.data[sum][m][4 * n], 4);
        for (int pair = 0; pair < 4; pair += 2)
          total += half(&tiles.data[left][m][4 * k + pair]) * half(&tiles.data[right][k][4 * n + pair]);
        memcpy(&tiles.data[sum][m][4 * n], &total, 4);
      }
}
