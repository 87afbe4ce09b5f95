// Tokens of a step's rows, and their log-probabilities: the same draws, bit for bit, as those of
// sampling/choosing.py, which is the reference. One pass over a row while it is in the cache.
//
// Bits agree because nothing depends on an order of summation: weights are made of additions and
// multiplications that are not contracted (hence the flag below), masses are whole numbers below
// 2^53, and their sums are exact (sampling/filters.py). Log-probabilities are of other weights, in
// doubles, whose errors are far below what a float shows.
//
// build: avx512 avx2 neon generic -ffp-contract=off
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "vectors.h"

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kChunk = 64;  // scores, whose masses are summed up at once

// Mirrored field by field in sampling/choosing.py. Rows are cut off at `width`, a multiple of kChunk.
struct Sample {
  int64_t num_rows, width;
  const float *scores;          // [step's rows][width]
  const int64_t *rows;          // [num_rows], of scores and uniforms; null: all
  const double *uniforms;       // [step's rows]; null: greedy
  const float *temperature;     // [num_rows], as all that follows
  const int64_t *top_k;         // null, or 0: off; with the next two, `filters` there
  const double *nucleus;        // null, or 1: off
  const float *min_p;           // null, or 0: off
  int64_t *tokens;              // greedy: the first of the best
  double *logprobs;             // NaN where no distribution can be made of the scores
  int64_t mass_bits;
};

// 8 doubles.
using Doubles = Vector<double>;

ALWAYS_INLINE Doubles widened(const float *from) {
  typedef float Narrow __attribute__((vector_size(2 * kLanes)));
  return each<double>([&](int i) {
    Narrow part;
    std::memcpy(&part, from + i * (kLanes / 2), sizeof part);
    return __builtin_convertvector(part, Doubles::Register);
  });
}

// a * b + sum, rounded once where the machine has an instruction for it.
ALWAYS_INLINE Doubles multiply_add(Doubles a, Doubles b, Doubles sum) {
  return each<double>([&](int i) {
#if defined(__AVX512F__)
    return (Doubles::Register)_mm512_fmadd_pd((__m512d)a.part[i], (__m512d)b.part[i],
                                              (__m512d)sum.part[i]);
#elif defined(__AVX__) && defined(__FMA__)
    return (Doubles::Register)_mm256_fmadd_pd((__m256d)a.part[i], (__m256d)b.part[i],
                                              (__m256d)sum.part[i]);
#elif defined(__aarch64__)
    return (Doubles::Register)vfmaq_f64((float64x2_t)sum.part[i], (float64x2_t)a.part[i],
                                        (float64x2_t)b.part[i]);
#else
    return a.part[i] * b.part[i] + sum.part[i];
#endif
  });
}

ALWAYS_INLINE double sum_of(Doubles v) {
  double lanes[8];
  std::memcpy(lanes, v.part, sizeof lanes);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
         ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

// e^x for -700 < x <= 0, to 5e-12, and exactly 1 at 0; NaN stays.
ALWAYS_INLINE Doubles precise_exp_of(Doubles x) {
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52, see exp_of
  const Doubles shifted =
      multiply_add(x, broadcast(1.4426950408889634), broadcast(kRound));
  const Doubles r = multiply_add(shifted - kRound, broadcast(-0.6931471805599453), x);
  Doubles p = broadcast(2.485959140032e-05);
  p = multiply_add(p, r, broadcast(1.989928557859e-04));
  p = multiply_add(p, r, broadcast(1.388885403286e-03));
  p = multiply_add(p, r, broadcast(8.333298469798e-03));
  p = multiply_add(p, r, broadcast(4.166666671903e-02));
  p = multiply_add(p, r, broadcast(1.666666671903e-01));
  p = multiply_add(p, r, broadcast(5.000000000000e-01));
  p = multiply_add(p, r * r, r + 1.0);
  const auto exponent = bits_as<int64_t>(shifted) + int64_t{1023};
  return p * bits_as<double>(exponent << int64_t{52});
}

struct Scored {
  float score;
  float mass;
};

// The smallest score that stays, and how many of those equal to it.
struct Cut {
  float score;
  int64_t num_tied;
};
constexpr int64_t kAllTied = std::numeric_limits<int64_t>::max();

double mass_of(const Scored *first, const Scored *end) {
  double sum = 0;
  for (; first != end; ++first) sum += first->mass;
  return sum;
}

// [first, equal) above the pivot, [equal, below) as large, [below, end) smaller.
struct Parts {
  Scored *equal, *below;
};
Parts part(Scored *first, Scored *end) {
  const float a = first->score, b = first[(end - first) / 2].score, c = end[-1].score;
  const float pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
  Scored *equal = std::partition(first, end, [=](const Scored &s) { return s.score > pivot; });
  return {equal, std::partition(equal, end, [=](const Scored &s) { return s.score == pivot; })};
}

// The score at place `rank` in falling order, from 0; what is above it comes before it.
float score_at(Scored *first, Scored *end, int64_t rank) {
  for (Scored *const begin = first;;) {
    const Parts parts = part(first, end);
    if (rank < parts.equal - begin)
      end = parts.equal;
    else if (rank < parts.below - begin)
      return parts.equal->score;
    else
      first = parts.below;
  }
}

// The first score in falling order up to which the masses add up to `target`, which they do.
Cut score_of_mass(Scored *first, Scored *end, double target) {
  for (double before = 0;;) {
    const Parts parts = part(first, end);
    const double above = before + mass_of(first, parts.equal);
    if (parts.equal != first && above >= target) {
      end = parts.equal;
      continue;
    }
    const double each = parts.equal->mass;
    const int64_t num_equal = parts.below - parts.equal;
    if (above + each * static_cast<double>(num_equal) >= target || parts.below == end) {
      int64_t num_kept = 1;
      while (num_kept < num_equal && above + each * static_cast<double>(num_kept) < target)
        ++num_kept;
      return {parts.equal->score, num_kept};
    }
    before = above + each * static_cast<double>(num_equal);
    first = parts.below;
  }
}

// What a thread works in.
struct Memory {
  std::vector<float> scaled, masses, kept;
  std::vector<double> chunk_masses;
  std::vector<Scored> ordered;
  void need(int64_t width) {
    if (static_cast<int64_t>(scaled.size()) >= width) return;
    scaled.resize(width);
    masses.resize(width);
    kept.resize(width);
    chunk_masses.resize(width / kChunk);
    ordered.resize(width);
  }
};

class Row {
 public:
  Row(const Sample &sample, int64_t index, Memory &memory)
      : s_(sample), index_(index), memory_(memory),
        place_(sample.rows == nullptr ? index : sample.rows[index]),
        unit_(static_cast<float>(std::ldexp(1.0, static_cast<int>(sample.mass_bits)))) {}

  void choose() {
    const float *scores = s_.scores + place_ * s_.width;
    if (s_.uniforms == nullptr) return take_best(scores);
    const float temperature = s_.temperature[index_];
    float *scaled = memory_.scaled.data();
    for (int64_t i = 0; i < s_.width; i += 16) store(scaled + i, load(scores + i) / temperature);
    weigh(scaled);
    if (std::isnan(total_) || !filter(scaled)) rest_ = rest_of(scaled, s_.width);
    const int64_t token = drawn();
    answer(token, scaled[token]);
  }

 private:
  // The largest score, every mass, and their sum; NaN if any score is NaN or the largest infinite.
  void weigh(const float *scores) {
    top_ = largest_of(largest_in(scores, 0, s_.width));
    total_ = 0;
    for (int64_t i = 0; i < s_.width; i += kChunk) {
      for (int64_t k = i; k < i + kChunk; k += 16) store(&memory_.masses[k], mass(load(scores + k)));
      total_ += memory_.chunk_masses[i / kChunk] = chunk_mass(&memory_.masses[i]);
    }
  }

  static Floats largest_in(const float *scores, int64_t first, int64_t end) {
    Floats largest = broadcast(-kInfinity);
    for (; first < end; first += kChunk)
      largest = larger(largest, largest_in_chunk(scores + first));
    return largest;
  }

  static Floats largest_in_chunk(const float *scores) {
    return larger(larger(load(scores), load(scores + 16)),
                  larger(load(scores + 32), load(scores + 48)));
  }

  Floats mass(Floats score) const { return rounded(exp_of(score - top_) * unit_); }

  // Above 2^23 floats are whole; below, adding it rounds to the nearest, ties to even.
  static Floats rounded(Floats x) {
    constexpr float kWhole = 8388608.f;
    return select(x < broadcast(kWhole), (x + kWhole) - kWhole, x);
  }

  static double chunk_mass(const float *masses) {
    Doubles sums[2] = {};
    for (int64_t i = 0; i < kChunk; i += 16) {
      sums[0] = sums[0] + widened(masses + i);
      sums[1] = sums[1] + widened(masses + i + 8);
    }
    return sum_of(sums[0] + sums[1]);
  }

  // The first of the largest scores. Nothing is drawn, so there are no masses, and one reading is
  // enough: what was summed up before a larger score is weighed anew as a whole.
  void take_best(const float *scores) {
    constexpr int64_t kPart = 16 * kChunk;
    int64_t token = 0;
    top_ = -kInfinity;
    rest_ = 0;
    for (int64_t first = 0; first < s_.width; first += kPart) {
      const int64_t end = std::min(first + kPart, s_.width);
      const float top = largest_of(largest_in(scores, first, end));
      if (top > top_) {
        const double share = std::exp(static_cast<double>(top_) - static_cast<double>(top));
        top_ = top;
        rest_ = (rest_ + 1) * share + rest_of(scores + first, end - first);
        token = std::find(scores + first, scores + end, top) - scores;
      } else {
        rest_ += weight_in(scores, first, end);
      }
    }
    answer(token, top_);
  }

  // Leaves masses to those tokens that top-k, top-p and min-p keep, in this order. Answers whether
  // there is any of them.
  bool filter(const float *scaled) {
    const int64_t top_k = s_.top_k == nullptr ? 0 : s_.top_k[index_];
    const double nucleus = s_.nucleus == nullptr ? 1 : s_.nucleus[index_];
    const float min_p = s_.min_p == nullptr ? 0 : s_.min_p[index_];
    if (top_k == 0 && nucleus >= 1 && min_p <= 0) return false;
    const float bound = bound_of(scaled, top_k, nucleus, min_p);
    Scored *first = memory_.ordered.data(), *end = first;
    for (int64_t i = 0; i < s_.width; i += kChunk) {
      if (largest_of(largest_in_chunk(scaled + i)) < bound) continue;
      for (int64_t k = i; k < i + kChunk; ++k) {
        *end = {scaled[k], memory_.masses[k]};
        end += scaled[k] >= bound;
      }
    }
    Cut cut{-kInfinity, kAllTied};
    Scored *const whole = end;
    if (top_k > 0 && top_k <= end - first) {
      cut.score = score_at(first, end, top_k - 1);
      end = std::partition(first, end, [&](const Scored &s) { return s.score >= cut.score; });
    }
    if (nucleus < 1) {
      const double total = top_k > 0 ? mass_of(first, end) : total_;
      cut = score_of_mass(first, end, total * nucleus);
    }
    if (min_p > 0) {
      const float least = min_p * unit_;
      const int64_t num_kept =
          std::count_if(first, whole, [=](const Scored &s) { return s.mass >= least; });
      const float last = score_at(first, whole, std::max<int64_t>(num_kept, 1) - 1);
      if (last > cut.score) cut = {last, kAllTied};
    }
    drop(scaled, cut);
    rest_ = rest_of(memory_.kept.data(), keep(first, whole, cut));
    return true;
  }

  // A score at or below the cut, with as few above it as a few passes find: what is sorted are few.
  float bound_of(const float *scaled, int64_t top_k, double nucleus, float min_p) const {
    if (top_k == 0 && nucleus >= 1) return top_ + std::log(min_p) - 0.01f;
    int64_t count = 0;
    const auto is_enough = [&](float bound) {
      double mass = 0;
      std::tie(count, mass) = above(scaled, bound);
      return top_k > 0 ? count >= top_k : mass >= total_ * nucleus;
    };
    float depth = 1, too_high = top_, bound = top_ - depth;
    for (; !is_enough(bound); bound = top_ - depth) {
      if (depth > 100) return -kInfinity;
      too_high = bound;
      depth *= 2;
    }
    for (int pass = 0; pass < 6 && count > 256; ++pass) {
      const float between = (too_high + bound) / 2;
      const int64_t before = count;
      (is_enough(between) ? bound : too_high) = between;
      if (bound != between) count = before;
    }
    return bound;
  }

  // How many tokens have at least this score, and their mass.
  std::pair<int64_t, double> above(const float *scaled, float bound) const {
    Ints count = broadcast(0);
    double mass = 0;
    for (int64_t i = 0; i < s_.width; i += kChunk) {
      alignas(64) float masses[kChunk];
      for (int64_t k = 0; k < kChunk; k += 16) {
        const Ints is_above = load(scaled + i + k) >= broadcast(bound);
        count = count - is_above;
        store(masses + k, select(is_above, load(&memory_.masses[i + k]), broadcast(0.f)));
      }
      mass += chunk_mass(masses);
    }
    int32_t counts[16];
    store(counts, count);
    return {std::accumulate(counts, counts + 16, int64_t{0}), mass};
  }

  // Of tokens equal to the cut the first go.
  void drop(const float *scaled, Cut cut) {
    int64_t num_going = 0;
    if (cut.num_tied != kAllTied)
      num_going = std::count(scaled, scaled + s_.width, cut.score) - cut.num_tied;
    total_ = 0;
    for (int64_t i = 0; i < s_.width; i += kChunk) {
      float *masses = &memory_.masses[i];
      for (int64_t k = 0; k < kChunk; k += 16)
        store(masses + k, select(load(scaled + i + k) >= broadcast(cut.score), load(masses + k),
                                 broadcast(0.f)));
      for (int64_t k = 0; num_going > 0 && k < kChunk; ++k)
        if (scaled[i + k] == cut.score) {
          masses[k] = 0;
          --num_going;
        }
      total_ += memory_.chunk_masses[i / kChunk] = chunk_mass(masses);
    }
  }

  // Gathers the scores that stay, -inf up to whole chunks, and answers how many there are.
  int64_t keep(const Scored *first, const Scored *end, Cut cut) {
    float *kept = memory_.kept.data();
    int64_t num_tied = cut.num_tied, num_kept = 0;
    for (; first != end; ++first)
      if (first->score > cut.score || (first->score == cut.score && num_tied-- > 0))
        kept[num_kept++] = first->score;
    while (num_kept % kChunk != 0) kept[num_kept++] = -kInfinity;
    return num_kept;
  }

  // The first token up to which masses add up to more than the draw's share of them all.
  int64_t drawn() const {
    const double target = std::floor(s_.uniforms[place_] * total_);
    double before = 0;
    int64_t i = 0;
    for (; i < s_.width - kChunk; i += kChunk) {
      const double sum = before + memory_.chunk_masses[i / kChunk];
      if (sum > target) break;
      before = sum;
    }
    const int64_t last = i + kChunk - 1;
    for (; i < last; ++i) {
      before += static_cast<double>(memory_.masses[i]);
      if (before > target) break;
    }
    return i;
  }

  void answer(int64_t token, float score) {
    const double below = static_cast<double>(score) - static_cast<double>(top_);
    s_.tokens[index_] = token;
    s_.logprobs[index_] = static_cast<float>(below - std::log1p(rest_)) + 0.f;  // no -0
  }

  // The weights of all these scores but the first of the largest: beside its 1 small ones would
  // lose their digits, and with them a token that is all but certain.
  double rest_of(const float *scores, int64_t num_scores) const {
    const int64_t top = std::find(scores, scores + num_scores - 1, top_) - scores;
    const int64_t chunk = top / kChunk * kChunk;
    float beside[kChunk];
    std::copy_n(scores + chunk, kChunk, beside);
    beside[top - chunk] = -kInfinity;
    return weight_in(scores, 0, chunk) + weight_in(beside, 0, kChunk) +
           weight_in(scores, chunk + kChunk, num_scores);
  }

  double weight_in(const float *scores, int64_t first, int64_t end) const {
    // What is lower counts as e^-kDepth, whose sum no float shows.
    constexpr float kDepth = 200;
    const float base = top_ == -kInfinity ? 0.f : top_;
    const Floats lowest = broadcast(base - kDepth);
    const auto top = static_cast<double>(base);
    Doubles sums[4] = {};
    for (; first < end; first += kChunk) {
      for (int64_t k = 0; k < kChunk; k += 32) {
        alignas(64) float near[32];
        store(near, larger(load(scores + first + k), lowest));
        store(near + 16, larger(load(scores + first + k + 16), lowest));
        for (int i = 0; i < 4; ++i)
          sums[i] = sums[i] + precise_exp_of(widened(near + 8 * i) - top);
      }
    }
    return sum_of((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }

  const Sample &s_;
  const int64_t index_;
  Memory &memory_;
  const int64_t place_;
  const float unit_;  // the mass of the weight 1
  float top_ = 0;
  double total_ = 0;
  double rest_ = 0;  // the weights of the tokens that stay, without the one of the largest score
};

struct Job {
  const Sample &sample;
  std::atomic<bool> has_memory{true};
};

void choose_row(void *job, int64_t index) {
  static thread_local Memory memory;
  auto &[sample, has_memory] = *static_cast<Job *>(job);
  try {
    memory.need(sample.width);
    Row(sample, index, memory).choose();
  } catch (const std::bad_alloc &) {
    has_memory = false;
  }
}

}  // namespace

extern "C" {
int64_t tandem_sample_size() { return sizeof(Sample); }

// Calls item(argument, i) for every i of [0, num_items), on any threads; answers whether it could.
using EachItem = int32_t (*)(void *team, int64_t num_items, void (*item)(void *, int64_t),
                             void *argument);

// Answers whether there was memory. `each`: null for this thread alone.
int32_t tandem_sample(const Sample *sample, EachItem each, void *team) {
  Job job{*sample};
  if (each == nullptr || sample->num_rows == 1) {
    for (int64_t i = 0; i < sample->num_rows; ++i) choose_row(&job, i);
    return job.has_memory;
  }
  return each(team, sample->num_rows, choose_row, &job) && job.has_memory;
}
}
