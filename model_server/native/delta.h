// The phases of a gated delta rule: each token's channels mixed with those before it, and each
// head's matrix S taken from token to token.
//
//     row of the product  | queries | keys | values | gates | betas | alphas |
//     mixed row           | queries | keys | values | gates | decays | betas | products |
//
// S is cut into panels of columns, which never meet: an item takes one panel through all of its
// sequence's tokens, one by one, so that bits depend neither on threads nor on how tokens are cut
// into steps. A slot of the pool holds S of all heads and the convolution's window at one position:
//
//     [head][panel][key_dim][columns] floats, [num_taps - 1][channels] floats
//
// A step reads one slot of a sequence and writes others, so an item may be done twice.
#pragma once

#include "product.h"

constexpr int64_t kMaxTaps = 8;

// What lies where in rows of a layer, in floats.
struct DeltaRow {
  int64_t query, key, value, gate, num_channels;
  int64_t beta, alpha, product_width;                  // of the product
  int64_t decay, mixed_beta, key_query, mixed_width;  // of what is mixed

  explicit DeltaRow(const Delta &d)
      : query(0), key(d.num_key_heads * d.key_dim), value(2 * key),
        gate(value + d.num_heads * d.value_dim), num_channels(gate),
        beta(gate + d.num_heads * d.value_dim), alpha(beta + d.num_heads),
        product_width(alpha + d.num_heads), decay(beta), mixed_beta(alpha),
        key_query(product_width), mixed_width(key_query + d.num_key_heads) {}
};

struct DeltaBuffers {
  const float *product;
  float *mixed, *answers;
  int64_t product_stride, mixed_stride, answers_stride;
};

// A thread's memory. `zeros` stand for the slot of a sequence that begins.
struct DeltaScratch {
  Buffer<float> head, panel, zeros;
  void reserve(const Delta &d) {
    head.need(std::max(d.key_dim, d.value_dim));
    panel.need(d.panel_floats());
    zeros.need(std::max(d.panel_floats(), DeltaRow(d).num_channels));
  }
};

// What a token does to a head.
struct DeltaToken {
  const float *query, *key, *value;  // of the panel's columns
  float decay, beta, key_query;
};

// One token's way through a panel of V vectors: `to` may be `from`.
//
//     S' = decay S + kᵀ d,  d = beta (v - decay k S);  q S' = decay q S + (q k) d
template <int V>
ALWAYS_INLINE void advance(const DeltaToken &token, int64_t key_dim, const float *from, float *to,
                           float *answer) {
  // Sums of every second row apart where registers are wide and few chains would wait.
  constexpr int kSums = kLanes == 16 ? 2 : 1;
  Floats by_key[kSums][V] = {}, by_query[kSums][V] = {};
  for (int64_t i = 0; i < key_dim; i += kSums)
#pragma GCC unroll 2
    for (int s = 0; s < kSums; ++s) {
      const Floats key = broadcast(token.key[i + s]), query = broadcast(token.query[i + s]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        const int64_t at = ((i + s) * V + v) * 16;
        const Floats row = load(from + at);
        __builtin_prefetch(to + at, 1);
        by_key[s][v] = multiply_add(row, key, by_key[s][v]);
        by_query[s][v] = multiply_add(row, query, by_query[s][v]);
      }
    }
  Floats change[V];
  const Floats decay = broadcast(token.decay);
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
    const Floats kept = kSums == 2 ? by_key[0][v] + by_key[kSums - 1][v] : by_key[0][v];
    const Floats asked = kSums == 2 ? by_query[0][v] + by_query[kSums - 1][v] : by_query[0][v];
    change[v] = multiply_add(kept, decay * -1.f, load(token.value + v * 16)) * token.beta;
    store(answer + v * 16, multiply_add(asked, decay, change[v] * token.key_query));
  }
  for (int64_t i = 0; i < key_dim; ++i) {
    const Floats key = broadcast(token.key[i]);
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      const int64_t at = (i * V + v) * 16;
      store(to + at, multiply_add(key, change[v], load(from + at) * decay));
    }
  }
}

class DeltaRunner {
 public:
  DeltaRunner(Worker &worker, Late late, DeltaScratch &scratch, const Step &step,
              const Delta &delta, const DeltaBuffers &buffers)
      : worker_(worker), late_(late), s_(step), d_(delta), at_(delta), buffers_(buffers),
        head_(scratch.head.get()), panel_(scratch.panel.get()), zeros_(scratch.zeros.get()) {}

  void run() {
    worker_.each(s_.num_seqs * d_.num_key_heads, late_,
                 [&](int64_t i) { mix(i / d_.num_key_heads, i % d_.num_key_heads); });
    const int64_t panels = d_.num_panels(), per_seq = d_.num_heads * panels;
    worker_.each(s_.num_seqs * per_seq, late_, [&](int64_t i) {
      const int64_t seq = i / per_seq, head = i % per_seq / panels, panel = i % panels;
      if (d_.panel_vectors() == 2)
        take_through<2>(seq, head, panel);
      else
        take_through<1>(seq, head, panel);
    });
  }

 private:
  const float *read_slot(int64_t seq) const {
    const int64_t slot = s_.state_reads[seq];
    return slot < 0 ? nullptr : d_.states + slot * d_.slot_floats();
  }
  float *written_slot(int64_t write) const {
    return d_.states + s_.state_write_slots[write] * d_.slot_floats();
  }

  // The product's row of the sequence's token, of those before the step as well.
  const float *row_of(int64_t seq, int64_t index) const {
    if (index >= 0)
      return buffers_.product + (s_.cu_query_lens[seq] + index) * buffers_.product_stride;
    const float *slot = read_slot(seq);
    if (slot == nullptr) return zeros_;
    return slot + d_.matrix_floats() + (d_.num_taps - 1 + index) * at_.num_channels;
  }

  // Everything of a key head and its heads but S: of all tokens, and the windows that are kept.
  void mix(int64_t seq, int64_t key_head) {
    const int64_t share = d_.num_heads / d_.num_key_heads, first = s_.cu_query_lens[seq];
    const int64_t query = at_.query + key_head * d_.key_dim, key = at_.key + key_head * d_.key_dim;
    for (int64_t t = 0; t < s_.cu_query_lens[seq + 1] - first; ++t) {
      const float *rows[kMaxTaps];
      for (int64_t tap = 0; tap < d_.num_taps; ++tap)
        rows[tap] = row_of(seq, t + tap - (d_.num_taps - 1));
      const float *row = rows[d_.num_taps - 1];
      float *to = buffers_.mixed + (first + t) * buffers_.mixed_stride;
      convolve(rows, query, d_.key_dim, head_);
      scale_to_one(1.f / std::sqrt(static_cast<float>(d_.key_dim)), to + query);
      convolve(rows, key, d_.key_dim, head_);
      scale_to_one(1.f, to + key);
      to[at_.key_query + key_head] = product(to + query, to + key);
      for (int64_t head = key_head * share; head < (key_head + 1) * share; ++head) {
        const int64_t column = head * d_.value_dim;
        convolve(rows, at_.value + column, d_.value_dim, to + at_.value + column);
        for (int64_t i = 0; i < d_.value_dim; i += 16)
          store(to + at_.gate + column + i,
                activate(kSilu, load(row + at_.gate + column + i)) * load(d_.norm.weights + i));
        const float alpha = row[at_.alpha + head] + d_.dt_bias[head];
        const float softplus = alpha > 20.f ? alpha : std::log1p(std::exp(alpha));
        to[at_.decay + head] = std::exp(-d_.rates[head] * softplus);
        to[at_.mixed_beta + head] =
            static_cast<float>(d_.beta_scale) / (1.f + std::exp(-row[at_.beta + head]));
      }
    }
    for (int64_t w = s_.cu_state_writes[seq]; w < s_.cu_state_writes[seq + 1]; ++w) {
      float *window = written_slot(w) + d_.matrix_floats();
      for (int64_t tap = 0; tap < d_.num_taps - 1; ++tap, window += at_.num_channels) {
        const float *row = row_of(seq, s_.state_write_lens[w] + tap - (d_.num_taps - 1));
        const int64_t value = at_.value + key_head * share * d_.value_dim;
        std::memcpy(window + query, row + query, d_.key_dim * sizeof(float));
        std::memcpy(window + key, row + key, d_.key_dim * sizeof(float));
        std::memcpy(window + value, row + value, share * d_.value_dim * sizeof(float));
      }
    }
  }

  void convolve(const float *const *rows, int64_t channel, int64_t n, float *to) const {
    for (int64_t i = 0; i < n; i += 16) {
      Floats sum = broadcast(0.f);
      if (d_.conv_bias != nullptr) sum = load(d_.conv_bias + channel + i);
      for (int64_t tap = 0; tap < d_.num_taps; ++tap)
        sum = multiply_add(load(rows[tap] + channel + i),
                           load(d_.taps + tap * at_.num_channels + channel + i), sum);
      store(to + i, activate(kSilu, sum));
    }
  }

  void scale_to_one(float scale, float *to) const {
    const float squares = sum_over(head_, d_.key_dim, [](auto v) { return v * v; });
    const float factor = scale / std::sqrt(squares + 1e-6f);
    for (int64_t i = 0; i < d_.key_dim; i += 16) store(to + i, load(head_ + i) * factor);
  }

  float product(const float *a, const float *b) const {
    Floats sum = broadcast(0.f);
    for (int64_t i = 0; i < d_.key_dim; i += 16) sum = multiply_add(load(a + i), load(b + i), sum);
    return sum_of(sum);
  }

  // One panel of a head through the sequence's tokens.
  template <int V>
  void take_through(int64_t seq, int64_t head, int64_t panel) {
    const int64_t first = s_.cu_query_lens[seq], end = s_.cu_query_lens[seq + 1];
    const int64_t key_head = head / (d_.num_heads / d_.num_key_heads);
    const int64_t offset = (head * d_.num_panels() + panel) * d_.panel_floats();
    const int64_t column = head * d_.value_dim + panel * V * 16;
    const float *slot = read_slot(seq), *from = slot == nullptr ? zeros_ : slot + offset;
    int64_t write = s_.cu_state_writes[seq];
    const int64_t end_write = s_.cu_state_writes[seq + 1];
    for (int64_t t = first; t < end; ++t) {
      const float *row = buffers_.mixed + t * buffers_.mixed_stride;
      const auto is_due = [&] {
        return write < end_write && s_.state_write_lens[write] == t + 1 - first;
      };
      float *const to = is_due() ? written_slot(write++) + offset : panel_;
      advance<V>({row + at_.query + key_head * d_.key_dim, row + at_.key + key_head * d_.key_dim,
                  row + at_.value + column, row[at_.decay + head], row[at_.mixed_beta + head],
                  row[at_.key_query + key_head]},
                 d_.key_dim, from, to, buffers_.answers + t * buffers_.answers_stride + column);
      for (; is_due(); ++write)
        std::memcpy(written_slot(write) + offset, to, d_.panel_floats() * sizeof(float));
      from = to;
    }
  }

  Worker &worker_;
  const Late late_;
  const Step &s_;
  const Delta &d_;
  const DeltaRow at_;
  const DeltaBuffers buffers_;
  float *head_, *panel_;
  const float *zeros_;
};
