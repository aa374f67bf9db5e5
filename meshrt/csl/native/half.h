/* Numbers of 16 bits, as NumPy rounds them. */

#ifndef MESHRT_CSL_HALF_H
#define MESHRT_CSL_HALF_H

#include <stdint.h>
#include <string.h>

static inline float half_to_float(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = half >> 10 & 31, mantissa = half & 1023, bits;
    if (exponent == 31)
        bits = sign | 0x7f800000 | mantissa << 13;
    else if (exponent)
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    else if (!mantissa)
        bits = sign;
    else {
        exponent = 113;
        while (!(mantissa & 1024))
            mantissa <<= 1, exponent--;
        bits = sign | exponent << 23 | (mantissa & 1023) << 13;
    }
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* To the nearest, to even between two. */
static inline uint16_t float_to_half(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const uint32_t exponent = bits >> 23 & 255;
    uint32_t mantissa = bits & 0x7fffff;
    if (exponent == 255) {
        uint16_t kept = (uint16_t)(0x7c00 | mantissa >> 13);
        if (mantissa && kept == 0x7c00)
            kept++;
        return sign | kept;
    }
    if (exponent > 142)
        return sign | 0x7c00;
    uint32_t shift = 13, base = exponent > 112 ? (exponent - 112) << 10 : 0;
    if (exponent > 112)
        mantissa &= 0x7fffff;
    else {
        if (exponent < 102)
            return sign;
        mantissa |= 0x800000;
        shift = 126 - exponent;
    }
    const uint32_t rest = mantissa & ((1u << shift) - 1), middle = 1u << (shift - 1);
    uint32_t kept = base + (mantissa >> shift);
    if (rest > middle || (rest == middle && kept & 1))
        kept++;
    return sign | (uint16_t)kept;
}

#endif
