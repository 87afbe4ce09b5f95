// Vectors of 16 lanes of 32 bits, one register or several, by what the machine has; and the elements
// that lie in their words: floats, and pairs of bfloat16s.
//
// Written in the compilers' vector extensions, so that one text serves AVX-512, AVX2 and NEON. It
// knows nothing of attention.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#if defined(__AVX__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

template <class T>
struct Vector {
  typedef T Register __attribute__((vector_size(4 * kLanes)));
  static constexpr int kRegisters = 16 / kLanes;
  Register part[kRegisters];
};
using Floats = Vector<float>;
using Ints = Vector<int32_t>;
using Words = Vector<uint32_t>;

#define ALWAYS_INLINE inline __attribute__((always_inline))

// Brings a line into the second level of the cache, which waits for more lines at a time than the
// first.
ALWAYS_INLINE void fetch_far(const void *line) { __builtin_prefetch(line, 0, 2); }

template <class T, class F>
ALWAYS_INLINE Vector<T> each(F f) {
  Vector<T> result;
#pragma GCC unroll 4
  for (int i = 0; i < Vector<T>::kRegisters; ++i) result.part[i] = f(i);
  return result;
}

#define ARITHMETIC(op)                                                 \
  template <class T>                                                   \
  ALWAYS_INLINE Vector<T> operator op(Vector<T> a, Vector<T> b) {      \
    return each<T>([&](int i) { return a.part[i] op b.part[i]; });     \
  }                                                                    \
  template <class T>                                                   \
  ALWAYS_INLINE Vector<T> operator op(Vector<T> a, T b) {              \
    return each<T>([&](int i) { return a.part[i] op b; });             \
  }
ARITHMETIC(+)
ARITHMETIC(-)
ARITHMETIC(*)
ARITHMETIC(/)
ARITHMETIC(<<)
ARITHMETIC(>>)
ARITHMETIC(&)
ARITHMETIC(|)
#undef ARITHMETIC

// Comparisons answer all ones or all zeros per lane.
#define COMPARISON(op)                                                                    \
  template <class T>                                                                      \
  ALWAYS_INLINE Ints operator op(Vector<T> a, Vector<T> b) {                              \
    return each<int32_t>([&](int i) { return (Ints::Register)(a.part[i] op b.part[i]); }); \
  }
COMPARISON(<)
COMPARISON(>=)
COMPARISON(==)
#undef COMPARISON

template <class T>
ALWAYS_INLINE Vector<T> select(Ints mask, Vector<T> yes, Vector<T> no) {
  return each<T>([&](int i) { return mask.part[i] ? yes.part[i] : no.part[i]; });
}

// The same bits, read as other numbers.
template <class To, class From>
ALWAYS_INLINE Vector<To> bits_as(Vector<From> v) {
  return each<To>([&](int i) { return (typename Vector<To>::Register)v.part[i]; });
}

// The same numbers.
ALWAYS_INLINE Floats floats_of(Ints v) {
  return each<float>([&](int i) {
    return __builtin_convertvector(v.part[i], Floats::Register);
  });
}

// x - 0 is x for every float, unlike 0 + x, so that no instruction remains of it.
template <class T>
ALWAYS_INLINE Vector<T> broadcast(T x) {
  return each<T>([&](int) { return x - typename Vector<T>::Register{}; });
}

template <class T>
ALWAYS_INLINE Vector<T> load(const T *from) {
  return each<T>([&](int i) {
    typename Vector<T>::Register part;
    std::memcpy(&part, from + i * kLanes, sizeof part);
    return part;
  });
}
template <class T>
ALWAYS_INLINE void store(T *to, Vector<T> v) {
  for (int i = 0; i < Vector<T>::kRegisters; ++i)
    std::memcpy(to + i * kLanes, &v.part[i], sizeof v.part[i]);
}

// a * b + sum: rounded once where the machine has an instruction for it, twice elsewhere. Named,
// because a sum that the compiler fuses in one place and not in another has two results.
ALWAYS_INLINE Floats multiply_add(Floats a, Floats b, Floats sum) {
  return each<float>([&](int i) {
#if defined(__AVX512F__)
    return (Floats::Register)_mm512_fmadd_ps((__m512)a.part[i], (__m512)b.part[i],
                                             (__m512)sum.part[i]);
#elif defined(__AVX__) && defined(__FMA__)
    return (Floats::Register)_mm256_fmadd_ps((__m256)a.part[i], (__m256)b.part[i],
                                             (__m256)sum.part[i]);
#elif defined(__aarch64__)
    return (Floats::Register)vfmaq_f32((float32x4_t)sum.part[i], (float32x4_t)a.part[i],
                                       (float32x4_t)b.part[i]);
#else
    return a.part[i] * b.part[i] + sum.part[i];
#endif
  });
}

// Lane i of a register joined with lane i ^ S.
template <int S, class Register, class F, int... I>
ALWAYS_INLINE Register fold_lanes(Register v, F join, std::integer_sequence<int, I...> lanes) {
#if defined(__clang__)
  v = join(v, __builtin_shufflevector(v, v, (I ^ S)...));
#else
  v = join(v, __builtin_shuffle(v, Ints::Register{(I ^ S)...}));
#endif
  if constexpr (S > 1) return fold_lanes<S / 2>(v, join, lanes);
  return v;
}

// The lanes joined, always in the same order: those a half apart, those a quarter apart and so on.
template <class T, class F>
ALWAYS_INLINE T fold(Vector<T> v, F join) {
  for (int half = Vector<T>::kRegisters / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) v.part[i] = join(v.part[i], v.part[i + half]);
  return fold_lanes<kLanes / 2>(v.part[0], join, std::make_integer_sequence<int, kLanes>{})[0];
}
ALWAYS_INLINE float sum_of(Floats v) {
  return fold(v, [](auto a, auto b) { return a + b; });
}
template <class T>
ALWAYS_INLINE Vector<T> larger(Vector<T> a, Vector<T> b) {
  return each<T>([&](int i) { return a.part[i] < b.part[i] ? b.part[i] : a.part[i]; });
}
template <class T>
ALWAYS_INLINE T largest_of(Vector<T> v) {
  return fold(v, [](auto a, auto b) { return a < b ? b : a; });
}

// e^x for x <= 0, to 2 ulp: exactly 1 at 0, and 0 where a float would be subnormal. Reduces by ln 2
// in two parts, then the polynomial of Cephes' expf.
ALWAYS_INLINE Floats exp_of(Floats x) {
  constexpr float kLowest = -87.3f;
  constexpr float kRound = 12582912.f;  // 1.5 * 2^23: adding it leaves the integer in the low bits
  const Floats in_range = larger(x, broadcast(kLowest));
  const Floats shifted = in_range * 1.44269504f + kRound;
  const Floats n = shifted - kRound;
  const Floats r = (in_range - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + (r + 1.f);
  const Floats power = bits_as<float>((bits_as<int32_t>(shifted) + 127) << 23);
  return select(x < broadcast(kLowest), broadcast(0.f), p * power);
}

// tanh(x) = (1 - e^(-2|x|)) / (1 + e^(-2|x|)), with the sign of x.
ALWAYS_INLINE Floats tanh_of(Floats x) {
  const Ints negative = x < broadcast(0.f);
  const Floats decay = exp_of(select(negative, x, x * -1.f) * 2.f);
  const Floats magnitude = (broadcast(1.f) - decay) / (broadcast(1.f) + decay);
  return select(negative, magnitude * -1.f, magnitude);
}

// ---- Elements: how they are packed into words, and how words join a sum.

#if defined(__AVX512BF16__) && defined(__AVX512F__)
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
