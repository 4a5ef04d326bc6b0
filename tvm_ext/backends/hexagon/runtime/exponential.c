/* What is made of exponentials and logarithms of float32: hyperbolic functions, their inverses and the error function,
 * within four units in the last place.
 */

#include "float.h"

float expf(float a);
float logf(float a);
float sqrtf(float a);

static float with_sign_of(float magnitude, float a) { return float_of(bits_of(magnitude) | (bits_of(a) & SIGN)); }

/* Half of e^x; e^x itself may be too large. */
static float half_exponential(float x)
{
    if (x < 88.0f)
        return 0.5f * expf(x);
    float root = expf(0.5f * x);
    return (0.5f * root) * root;
}

float sinhf(float a)
{
    float x = __builtin_fabsf(a);
    if (x < 1.0f) {
        float square = a * a;
        float p = fused(square, 1.0f / 39916800.0f, 1.0f / 362880.0f);
        p = fused(p, square, 1.0f / 5040.0f);
        p = fused(p, square, 1.0f / 120.0f);
        p = fused(p, square, 1.0f / 6.0f);
        return fused(a * square, p, a);
    }
    float half = half_exponential(x);
    return a != a ? a : with_sign_of(x < 20.0f ? half - 0.25f / half : half, a);
}

float coshf(float a)
{
    float half = half_exponential(__builtin_fabsf(a));
    return a != a ? a : half + 0.25f / half;
}

float log1pf(float a)
{
    float sum = 1.0f + a;
    if (sum == 1.0f || !(a < float_of(INFINITY_BITS)))
        return a;
    if (!(sum > 0.0f))
        return logf(sum);
    return logf(sum) + (a - (sum - 1.0f)) / sum;
}

static const float LARGE = 1e9f, LOG_2 = 0.693147182f;

float asinhf(float a)
{
    float x = __builtin_fabsf(a);
    if (!(x < LARGE))
        return a != a ? a : with_sign_of(logf(x) + LOG_2, a);
    return with_sign_of(log1pf(x + x * x / (1.0f + sqrtf(fused(x, x, 1.0f)))), a);
}

float acoshf(float a)
{
    if (!(a >= 1.0f))
        return float_of(NAN_BITS);
    if (a > LARGE)
        return logf(a) + LOG_2;
    float above = a - 1.0f;
    return log1pf(above + sqrtf(above * (above + 2.0f)));
}

float atanhf(float a)
{
    float x = __builtin_fabsf(a);
    return a != a ? a : with_sign_of(0.5f * log1pf(2.0f * x / (1.0f - x)), a);
}

float erff(float a)
{
    float x = __builtin_fabsf(a);
    if (a != a)
        return a;
    if (x < 1.0f) {
        float square = a * a;
        float p = fused(square, 1.0601171e-6f, -1.3914059e-5f);
        p = fused(p, square, 1.195733e-4f);
        p = fused(p, square, -8.542703e-4f);
        p = fused(p, square, 5.2237865e-3f);
        p = fused(p, square, -0.026866134f);
        p = fused(p, square, 0.11283791f);
        p = fused(p, square, -0.37612638f);
        p = fused(p, square, 0.12837917f);
        return fused(a, p, a);
    }
    /* What is missing to 1 is a power of e. */
    float p = fused(x, 6.28434e-7f, -9.969607e-6f);
    p = fused(p, x, 4.7108068e-5f);
    p = fused(p, x, 1.7025816e-4f);
    p = fused(p, x, -3.5321696e-3f);
    p = fused(p, x, 0.024119083f);
    p = fused(p, x, -0.1072659f);
    p = fused(p, x, -0.6339888f);
    p = fused(p, x, -1.1292849f);
    p = fused(p, x, 1.3915925e-4f);
    return with_sign_of(x < 4.0f ? 1.0f - expf(p) : 1.0f, a);
}
