// The two element types of a cache: how they are packed into words, and how words join a sum.
#pragma once

#include "vectors.h"

#if defined(__AVX512BF16__) && defined(__AVX512F__)
#include <immintrin.h>
#define NATIVE_BF16 1
#endif

// A word holds kPack elements. An Operand multiplies a word: as many numbers, ready for use.
struct F32 {
  using Element = float;
  using Operand = float;
  static constexpr int64_t kPack = 1;

  static Operand operand(const Element *x) { return *x; }
  static ALWAYS_INLINE Floats dot(Floats sum, Operand x, Words words) {
    return sum + bits_as<float>(words) * x;
  }
  static void store_operands(Operand *to, Floats x) { store(to, x); }
  static void store_elements(Element *to, Floats x) { store(to, x); }
};

#if NATIVE_BF16

// One instruction multiplies two pairs and adds both products: half as much again in prompts.
struct Bf16 {
  using Element = uint16_t;
  using Operand = uint32_t;  // a pair, as it lies in memory
  static constexpr int64_t kPack = 2;

  static Operand operand(const Element *x) {
    Operand pair;
    std::memcpy(&pair, x, sizeof pair);
    return pair;
  }
  static ALWAYS_INLINE Floats dot(Floats sum, Operand x, Words words) {
    const __m512i pairs = _mm512_set1_epi32(static_cast<int32_t>(x));
    return {(Floats::Register)_mm512_dpbf16_ps((__m512)sum.part[0], (__m512bh)pairs,
                                               (__m512bh)words.part[0])};
  }
  static void store_operands(Operand *to, Floats x) { store_rounded(to, x); }
  static void store_elements(Element *to, Floats x) { store_rounded(to, x); }

 private:
  static void store_rounded(void *to, Floats x) {
    const __m256bh rounded = _mm512_cvtneps_pbh((__m512)x.part[0]);
    std::memcpy(to, &rounded, sizeof rounded);
  }
};

#else

struct Bf16 {
  using Element = uint16_t;
  struct Operand {
    float low, high;
  };
  static constexpr int64_t kPack = 2;

  static Operand operand(const Element *x) { return {widened(x[0]), widened(x[1])}; }
  static ALWAYS_INLINE Floats dot(Floats sum, Operand x, Words words) {
    sum = sum + bits_as<float>(words << 16u) * x.low;
    return sum + bits_as<float>(words & 0xffff0000u) * x.high;
  }
  static void store_operands(Operand *to, Floats x) { std::memcpy(to, &x, sizeof x); }
  static void store_elements(Element *to, Floats x) {
    const Words bits = bits_as<uint32_t>(x);
    const Words to_nearest_even = (bits + ((bits >> 16u) & 1u) + 0x7fffu) >> 16u;
    uint32_t rounded[16];  // NaN stays NaN, whatever rounding would make of its bits
    store(rounded, select(x == x, to_nearest_even, broadcast(0x7fc0u)));
    for (int lane = 0; lane < 16; ++lane) to[lane] = static_cast<Element>(rounded[lane]);
  }

 private:
  static float widened(Element x) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
  }
};

#endif
