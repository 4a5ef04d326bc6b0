/* Of float32: powers within three units in the last place, of two within one, logarithms within one; the exact remainder
 * of a division.
 */

#include "float.h"

float rintf(float a);

/* A sum of two floats, the second below half a unit in the last place of the first: some 48 bits. */
typedef struct {
    float high, low;
} Pair;

static Pair sum_of(float large, float small)
{
    float high = large + small;
    return (Pair){high, small - (high - large)};
}

static Pair times(Pair a, float b)
{
    float high = a.high * b;
    return sum_of(high, fused(a.low, b, fused(a.high, b, -high)));
}

/* log2 of a number that is finite and above zero. */
static Pair logarithm(float a)
{
    int exponent = 0;
    if (bits_of(a) < 0x800000u) {
        a *= 16777216.0f;
        exponent = -24;
    }
    exponent += (int)(bits_of(a) >> 23) - 127;
    float m = float_of((bits_of(a) & 0x7fffffu) | (127u << 23));
    if (m > 1.41421356f) {
        m *= 0.5f;
        exponent++;
    }
    /* log m = 2 artanh s with s = (m - 1) / (m + 1), |s| < 0.172; m - 1 is exact. */
    Pair bottom = sum_of(m, 1.0f);
    if (m < 1.0f)
        bottom = sum_of(1.0f, m);
    float top = m - 1.0f, s = top / bottom.high;
    float rest = fused(-s, bottom.low, fused(-s, bottom.high, top)) / bottom.high;
    Pair root = sum_of(s, rest);
    float square = s * s;
    float p = fused(square, 2.0f / 11.0f, 2.0f / 9.0f);
    p = fused(p, square, 2.0f / 7.0f);
    p = fused(p, square, 2.0f / 5.0f);
    p = fused(p, square, 2.0f / 3.0f);
    Pair log = sum_of(2.0f * root.high, fused(s * square, p, 2.0f * root.low));
    const Pair per_octave = {1.44269502f, 1.92596303e-8f}; /* 1 / log 2 */
    Pair scaled = times(log, per_octave.high);
    scaled = sum_of(scaled.high, fused(log.high, per_octave.low, scaled.low));
    Pair whole = sum_of((float)exponent, scaled.high);
    if (exponent == 0)
        return scaled;
    return sum_of(whole.high, whole.low + scaled.low);
}

static float two_to(Pair a)
{
    if (a.high >= 128.0f)
        return float_of(INFINITY_BITS);
    if (a.high < -150.0f)
        return 0.0f;
    float n = rintf(a.high), r = (a.high - n) + a.low;
    /* 2^r = e^(r log 2) */
    float x = r * 0.693147182f;
    x = fused(r, -1.90465421e-9f, x);
    float p = fused(x, 1.0f / 5040.0f, 1.0f / 720.0f);
    p = fused(p, x, 1.0f / 120.0f);
    p = fused(p, x, 1.0f / 24.0f);
    p = fused(p, x, 1.0f / 6.0f);
    p = fused(p, x, 0.5f);
    float value = fused(x * x, p, x) + 1.0f;
    int exponent = (int)n, half = exponent / 2;
    value *= float_of((u32)(half + 127) << 23);
    return value * float_of((u32)(exponent - half + 127) << 23);
}

float exp2f(float a) { return a != a ? a : two_to((Pair){a, 0.0f}); }

static float logarithm_times(float a, Pair unit)
{
    u32 bits = bits_of(a);
    if ((bits & ~SIGN) == 0)
        return float_of(SIGN | INFINITY_BITS);
    if (bits >= INFINITY_BITS)
        return bits == INFINITY_BITS ? a : float_of(NAN_BITS);
    Pair log = logarithm(a), scaled = times(log, unit.high);
    return scaled.high + fused(log.high, unit.low, scaled.low);
}

float log2f(float a) { return logarithm_times(a, (Pair){1.0f, 0.0f}); }
float log10f(float a) { return logarithm_times(a, (Pair){0.301030010f, -1.43209888e-8f}); }

float powf(float a, float b)
{
    u32 base = bits_of(a) & ~SIGN, exponent = bits_of(b) & ~SIGN;
    if (exponent == 0 || bits_of(a) == 0x3f800000u)
        return 1.0f;
    if (base > INFINITY_BITS || exponent > INFINITY_BITS)
        return float_of(NAN_BITS);
    int is_negative = bits_of(a) >> 31, falls = bits_of(b) >> 31;
    int is_whole = exponent >= 0x4b000000u || rintf(b) == b;
    int is_odd = is_whole && exponent < 0x4b800000u && ((int)b & 1);
    u32 sign = is_negative && is_odd ? SIGN : 0;
    if (exponent == INFINITY_BITS) {
        if (base == 0x3f800000u)
            return 1.0f;
        return base > 0x3f800000u ? float_of(falls ? 0 : INFINITY_BITS) : float_of(falls ? INFINITY_BITS : 0);
    }
    if (base == 0 || base == INFINITY_BITS)
        return float_of(sign | ((base == 0) == falls ? INFINITY_BITS : 0));
    if (is_negative && !is_whole)
        return float_of(NAN_BITS);
    Pair log = logarithm(float_of(base));
    float product = log.high * b;
    if (!(__builtin_fabsf(product) < 300.0f))
        return float_of(sign | (product > 0 ? INFINITY_BITS : 0));
    return float_of(sign | bits_of(two_to(times(log, b))));
}

float fmodf(float a, float b)
{
    u32 sign = bits_of(a) & SIGN, left = bits_of(a) & ~SIGN, right = bits_of(b) & ~SIGN;
    if (left >= INFINITY_BITS || right > INFINITY_BITS || right == 0)
        return float_of(NAN_BITS);
    if (left < right)
        return a;
    /* Both as mantissas of one exponent. */
    int up = left >> 23 ? (int)(left >> 23) : 1, down = right >> 23 ? (int)(right >> 23) : 1;
    u32 dividend = (left & 0x7fffffu) | (left >> 23 ? 0x800000u : 0);
    u32 divisor = (right & 0x7fffffu) | (right >> 23 ? 0x800000u : 0);
    dividend %= divisor;
    for (; up > down; up--) {
        dividend <<= 1;
        dividend = dividend >= divisor ? dividend - divisor : dividend;
    }
    if (dividend == 0)
        return float_of(sign);
    int shift = __builtin_clz(dividend) - 8;
    if (shift >= down) /* a subnormal number */
        return float_of(sign | (dividend << (down - 1)));
    return float_of(sign | ((u32)(down - shift - 1) << 23) + (dividend << shift));
}
