/* Functions of float32 for kernels on the scalar core: correctly rounded division, square root and rounding to whole
 * numbers; exponential and logarithm within two units in the last place.
 */

#include "float.h"

static int leading_zeros(u32 value) { return value ? __builtin_clz(value) : 32; }

/* Mantissa with its leading one at bit 23, and the exponent that belongs to it; the value is not zero. */
static u32 normalized(u32 magnitude, int *exponent)
{
    int biased = (int)(magnitude >> 23);
    u32 mantissa = magnitude & 0x7fffffu;
    if (biased) {
        *exponent = biased;
        return mantissa | 0x800000u;
    }
    int shift = leading_zeros(mantissa) - 8;
    *exponent = 1 - shift;
    return mantissa << shift;
}

/* mantissa * 2^(exponent - 127 - 25), with the leading one of the mantissa at bit 25, a sticky bit included. */
static float rounded(u32 sign, int exponent, u32 mantissa)
{
    int drop = 2;
    if (exponent <= 0) {
        drop += 1 - exponent;
        exponent = 0;
        if (drop > 30)
            drop = 30;
    }
    u32 kept = mantissa >> drop, lost = mantissa & ((1u << drop) - 1), half = 1u << (drop - 1);
    if (lost > half || (lost == half && (kept & 1)))
        kept++;
    /* A carry into the exponent is what it should be. */
    u32 magnitude = exponent ? ((u32)(exponent - 1) << 23) + kept : kept;
    return float_of(sign | (magnitude < INFINITY_BITS ? magnitude : INFINITY_BITS));
}

float __hexagon_divsf3(float a, float b)
{
    u32 sign = (bits_of(a) ^ bits_of(b)) & SIGN, left = bits_of(a) & ~SIGN, right = bits_of(b) & ~SIGN;
    if (left > INFINITY_BITS || right > INFINITY_BITS || (left == right && (left == 0 || left == INFINITY_BITS)))
        return float_of(NAN_BITS);
    if (left == INFINITY_BITS || right == 0)
        return float_of(sign | INFINITY_BITS);
    if (left == 0 || right == INFINITY_BITS)
        return float_of(sign);
    int up, down;
    u32 dividend = normalized(left, &up), divisor = normalized(right, &down);
    int exponent = up - down + 127;
    if (dividend < divisor) {
        dividend <<= 1;
        exponent--;
    }
    u32 quotient = 0;
    for (int i = 0; i < 26; i++) {
        quotient <<= 1;
        if (dividend >= divisor) {
            dividend -= divisor;
            quotient |= 1;
        }
        dividend <<= 1;
    }
    if (exponent >= 255)
        return float_of(sign | INFINITY_BITS);
    return rounded(sign, exponent, quotient | (dividend != 0));
}

float __hexagon_sqrtf(float a)
{
    u32 bits = bits_of(a);
    if ((bits & ~SIGN) == 0 || bits == INFINITY_BITS)
        return a;
    if (bits > INFINITY_BITS)
        return float_of(NAN_BITS);
    int exponent;
    u32 mantissa = normalized(bits, &exponent);
    int half = exponent - 127;
    u64 radicand = (u64)mantissa << 27; /* root of it has its leading one at bit 25 */
    if (half & 1) {
        radicand <<= 1;
        half--;
    }
    u32 root = 0;
    for (int bit = 25; bit >= 0; bit--) {
        u32 trial = root | (1u << bit);
        if ((u64)trial * trial <= radicand)
            root = trial;
    }
    return rounded(0, half / 2 + 127, root | ((u64)root * root != radicand));
}

float sqrtf(float a) { return __hexagon_sqrtf(a); }

/* Whole numbers. From 2^23 on, and where there is no number, a value stays what it is. */

static int is_whole(float a) { return (bits_of(a) & ~SIGN) >= 0x4b000000u; }

static float with_sign(float magnitude, float sign) { return float_of(bits_of(magnitude) | (bits_of(sign) & SIGN)); }

float truncf(float a) { return is_whole(a) ? a : with_sign((float)(int)__builtin_fabsf(a), a); }

float floorf(float a)
{
    float whole = truncf(a);
    return whole > a ? whole - 1.0f : whole;
}

float ceilf(float a)
{
    float whole = truncf(a);
    return whole < a ? with_sign(whole + 1.0f, a) : whole;
}

float roundf(float a)
{
    float magnitude = __builtin_fabsf(a), whole = truncf(magnitude);
    return is_whole(a) ? a : with_sign(magnitude - whole >= 0.5f ? whole + 1.0f : whole, a);
}

float rintf(float a)
{
    float magnitude = __builtin_fabsf(a), whole = truncf(magnitude), rest = magnitude - whole;
    if (is_whole(a))
        return a;
    return with_sign(rest > 0.5f || (rest == 0.5f && ((int)whole & 1)) ? whole + 1.0f : whole, a);
}

float nearbyintf(float a) { return rintf(a); }
float roundevenf(float a) { return rintf(a); }

static float scaled(float value, int exponent)
{
    while (exponent > 127) {
        value *= float_of(254u << 23);
        exponent -= 127;
    }
    while (exponent < -126) {
        value *= float_of(1u << 23);
        exponent += 126;
    }
    return value * float_of((u32)(exponent + 127) << 23);
}

float expf(float a)
{
    if (!(a <= 89.0f))
        return a != a ? a : float_of(INFINITY_BITS);
    if (a < -104.0f)
        return 0.0f;
    /* a = n log 2 + r with |r| <= log(2) / 2; log 2 in two parts, the first exact in products with n. */
    float n = rintf(a * 1.44269504f);
    float r = fused(n, -0.693359375f, a);
    r = fused(n, 2.12194440e-4f, r);
    float p = 1.0f / 5040.0f;
    p = fused(p, r, 1.0f / 720.0f);
    p = fused(p, r, 1.0f / 120.0f);
    p = fused(p, r, 1.0f / 24.0f);
    p = fused(p, r, 1.0f / 6.0f);
    p = fused(p, r, 0.5f);
    return scaled(fused(r * r, p, r) + 1.0f, (int)n);
}

float logf(float a)
{
    u32 bits = bits_of(a);
    if ((bits & ~SIGN) == 0)
        return float_of(SIGN | INFINITY_BITS);
    if (bits >= INFINITY_BITS)
        return bits == INFINITY_BITS ? a : float_of(NAN_BITS);
    int exponent;
    u32 mantissa = normalized(bits, &exponent);
    float m = float_of((mantissa & 0x7fffffu) | (127u << 23));
    if (m > 1.41421356f) {
        m *= 0.5f;
        exponent++;
    }
    /* log m = 2 artanh s with s = (m - 1) / (m + 1), |s| < 0.172 */
    float s = __hexagon_divsf3(m - 1.0f, m + 1.0f), square = s * s;
    float p = 2.0f / 9.0f;
    p = fused(p, square, 2.0f / 7.0f);
    p = fused(p, square, 2.0f / 5.0f);
    p = fused(p, square, 2.0f / 3.0f);
    float n = (float)(exponent - 127);
    return fused(n, 0.693359375f, fused(n, -2.12194440e-4f, s * square * p + 2.0f * s));
}
