/* What the functions of floats share: bits of a float32, and the sum of a product that is rounded once. */

#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

static u32 bits_of(float value)
{
    union {
        float value;
        u32 bits;
    } both = {value};
    return both.bits;
}

static float float_of(u32 bits)
{
    union {
        u32 bits;
        float value;
    } both = {bits};
    return both.value;
}

static const u32 SIGN = 0x80000000u, INFINITY_BITS = 0x7f800000u, NAN_BITS = 0x7fc00000u;

/* a * b + c, rounded once. */
static float fused(float a, float b, float c) { return __builtin_HEXAGON_F2_sffma(c, a, b); }
