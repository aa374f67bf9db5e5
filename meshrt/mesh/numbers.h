/* Numbers of 16 bits as float32, and float32 rounded to them: to the nearest, ties to even, as NumPy does. */

#ifndef MESHRT_NUMBERS_H
#define MESHRT_NUMBERS_H

#include <stdint.h>
#include <string.h>

static inline float number(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float of_bfloat16(uint16_t bits)
{
    return number((uint32_t)bits << 16);
}

/* The exponent is 112 too small, also that of numbers below the least normal one; infinities and NaN keep theirs. */
static inline float of_float16(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, rest = (uint32_t)(bits & 0x7fff) << 13;
    const uint32_t found = bits_of(number(sign | rest) * 0x1p112f);
    return number(found | (-(uint32_t)(rest >= 0x0f800000) & 0x7f800000)); /* no branch: so it goes by vectors */
}

/* Of no NaN. */
static inline float to_bfloat16(float value)
{
    const uint32_t bits = bits_of(value);
    return number((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
}

/* Of no NaN. Below the least normal float16 all numbers are as far apart as float32 is from a half on. */
static inline float to_float16(float value)
{
    const uint32_t bits = bits_of(value), sign = bits & 0x80000000, size = bits ^ sign;
    const uint32_t near = (size + 0xfff + (size >> 13 & 1)) & ~(uint32_t)0x1fff;
    const uint32_t small = bits_of((number(size) + 0.5f) - 0.5f);
    const uint32_t below = -(uint32_t)(size < 0x38800000), above = -(uint32_t)(near >= 0x47800000); /* 2^16: infinite */
    return number(sign | (small & below) | (0x7f800000 & above) | (near & ~(below | above)));
}

#endif
