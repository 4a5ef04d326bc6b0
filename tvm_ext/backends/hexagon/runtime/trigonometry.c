/* Sine, cosine, tangent and their inverses of float32: within two units in the last place, tangent, arcsine and
 * arccosine within four; of any argument.
 */

#include "float.h"

typedef long long i64;

float sqrtf(float a);

/* The first bits of 2 / pi after the point, behind 32 bits of zero. */
static const u32 TWO_OVER_PI[] = {0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                  0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};

/* Gives n modulo 4 and the rest of a = n pi / 2 + rest, which is at most pi / 4. */
static int quadrant(float a, float *rest)
{
    u32 magnitude = bits_of(a) & ~SIGN;
    if (magnitude < 0x3f490fdbu) {
        *rest = a;
        return 0;
    }
    /* |a| = mantissa * 2^exponent. Bits of 2 / pi whose products are multiples of 4 are left out, and 96 bits from
     * there on multiplied: bit 94 is that of 1. */
    int exponent = (int)(magnitude >> 23) - 150;
    u64 mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    u32 start = (u32)(exponent + 30), shift = start % 32, window[3];
    const u32 *words = TWO_OVER_PI + start / 32;
    /* Otherwise clang 19 takes both shifts for one of 64 bits, by `start`, which does not count modulo 32. */
    asm("" : "+r"(shift));
    for (int i = 0; i < 3; i++)
        window[i] = shift ? (words[i] << shift) | (words[i + 1] >> (32 - shift)) : words[i];
    u64 turns = ((mantissa * window[0]) << 32) + mantissa * window[1] + ((mantissa * window[2]) >> 32);
    u32 count = (u32)((turns + (1ull << 61)) >> 62);
    i64 left = (i64)(turns - ((u64)count << 62)); /* in units of 2^-62 quarters of a turn */
    float high = (float)left, low = (float)(left - (i64)high);
    const float unit = float_of(65u << 23); /* 2^-62 */
    const float half_pi = 1.57079637f, half_pi_rest = -4.37113883e-8f;
    high *= unit;
    *rest = fused(high, half_pi, fused(high, half_pi_rest, low * unit * half_pi));
    if (bits_of(a) & SIGN) {
        *rest = -*rest;
        count = 0u - count;
    }
    return (int)(count & 3u);
}

static float sine(float r)
{
    float square = r * r;
    float p = fused(square, 1.0f / 362880.0f, -1.0f / 5040.0f);
    p = fused(p, square, 1.0f / 120.0f);
    p = fused(p, square, -1.0f / 6.0f);
    return fused(r * square, p, r);
}

static float cosine(float r)
{
    float square = r * r;
    float p = fused(square, -1.0f / 3628800.0f, 1.0f / 40320.0f);
    p = fused(p, square, -1.0f / 720.0f);
    p = fused(p, square, 1.0f / 24.0f);
    p = fused(p, square, -0.5f);
    return fused(square, p, 1.0f);
}

static int is_finite(float a) { return (bits_of(a) & ~SIGN) < INFINITY_BITS; }

/* The sine of a + n pi / 2. */
static float turned(float a, int n)
{
    float rest;
    if (!is_finite(a))
        return float_of(NAN_BITS);
    n += quadrant(a, &rest);
    float value = n & 1 ? cosine(rest) : sine(rest);
    return n & 2 ? -value : value;
}

float sinf(float a) { return turned(a, 0); }
float cosf(float a) { return turned(a, 1); }

float tanf(float a)
{
    float rest;
    if (!is_finite(a))
        return float_of(NAN_BITS);
    return quadrant(a, &rest) & 1 ? -(cosine(rest) / sine(rest)) : sine(rest) / cosine(rest);
}

/* The arctangent of at most 0.4143, and the arcsine of at most a half: polynomials in the square. */

static float small_arctangent(float a)
{
    float square = a * a;
    float p = fused(square, -0.060777288f, 0.105938524f);
    p = fused(p, square, -0.14243574f);
    p = fused(p, square, 0.19998476f);
    p = fused(p, square, -0.33333316f);
    return fused(a * square, p, a);
}

static float small_arcsine(float a)
{
    float square = a * a;
    float p = fused(square, 0.042218547f, 0.024147611f);
    p = fused(p, square, 0.045477096f);
    p = fused(p, square, 0.074952416f);
    p = fused(p, square, 0.16666754f);
    return fused(a * square, p, a);
}

static const float HALF_PI = 1.57079637f, HALF_PI_REST = -4.37113883e-8f;
static const float QUARTER_PI = 0.785398185f, QUARTER_PI_REST = -2.18556941e-8f;

static float with_sign_of(float magnitude, float a) { return float_of(bits_of(magnitude) | (bits_of(a) & SIGN)); }

float atanf(float a)
{
    float x = __builtin_fabsf(a);
    if (a != a)
        return a;
    if (x > 2.41421356f)
        return with_sign_of(HALF_PI + (HALF_PI_REST - small_arctangent(1.0f / x)), a);
    if (x > 0.414213562f)
        return with_sign_of(QUARTER_PI + (QUARTER_PI_REST + small_arctangent((x - 1.0f) / (x + 1.0f))), a);
    return small_arctangent(a);
}

float asinf(float a)
{
    float x = __builtin_fabsf(a);
    if (!(x <= 1.0f))
        return float_of(NAN_BITS);
    if (x <= 0.5f)
        return small_arcsine(a);
    float rest = small_arcsine(sqrtf(0.5f - 0.5f * x));
    return with_sign_of(HALF_PI + (HALF_PI_REST - 2.0f * rest), a);
}

float acosf(float a)
{
    float x = __builtin_fabsf(a);
    if (!(x <= 1.0f))
        return float_of(NAN_BITS);
    if (x <= 0.5f)
        return HALF_PI + (HALF_PI_REST - small_arcsine(a));
    float half = small_arcsine(sqrtf(0.5f - 0.5f * x));
    return a > 0.0f ? 2.0f * half : 2.0f * (HALF_PI + (HALF_PI_REST - half));
}
