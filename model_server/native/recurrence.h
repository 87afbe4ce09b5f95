// The phases of a gated delta rule or a selective state space: each token's channels mixed with those
// before it, and each head's matrix S taken from token to token.
//
//     row of the product  | queries | keys | values | gates | betas | alphas |
//     of a state space    | values | keys | queries | gates | alphas |
//     mixed row           | as above, up to gates | decays | betas | products |
//
// A state space's queries, keys and alphas are its c, b and dt; its betas are its time steps, and it
// has no products of keys and queries.
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
struct RecurrenceRow {
  int64_t query, key, value, gate, num_channels;
  int64_t beta, alpha;                                // of the product
  int64_t decay, mixed_beta, key_query, mixed_width;  // of what is mixed

  explicit RecurrenceRow(const Recurrence &r) {
    const int64_t keys = r.num_key_heads * r.key_dim, values = r.num_heads * r.value_dim;
    query = r.skip ? values + keys : 0;
    key = r.skip ? values : keys;
    value = r.skip ? 0 : 2 * keys;
    num_channels = gate = 2 * keys + values;
    beta = decay = gate + values;
    alpha = r.skip ? beta : beta + r.num_heads;
    mixed_beta = decay + r.num_heads;
    key_query = mixed_beta + r.num_heads;
    mixed_width = key_query + r.num_key_heads;
  }
};

struct RecurrenceBuffers {
  const float *product;
  float *mixed, *answers;
  int64_t product_stride, mixed_stride, answers_stride;
};

// A thread's memory. `zeros` stand for the slot of a sequence that begins.
struct RecurrenceScratch {
  Buffer<float> head, panel, zeros;
  void reserve(const Recurrence &r) {
    head.need(r.key_dim);
    panel.need(r.panel_floats());
    zeros.need(std::max(r.panel_floats(), RecurrenceRow(r).num_channels));
  }
};

// What a token does to a head.
struct HeadToken {
  const float *query, *key, *value;  // of the panel's columns
  float decay, beta, key_query;
};

// Sums of every second row apart where registers are wide and few chains would wait.
constexpr int kSums = kLanes == 16 ? 2 : 1;

// One token's way through a panel of V vectors by a state space: `to` may be `from`. `gates`: of what
// it gives, or null. An answer is stored once, finished: another thread may be reading already.
//
//     S' = decay S + kᵀ (beta v);  gate (q S' + skip v)
template <int V>
ALWAYS_INLINE void apply_scan(const HeadToken &token, float skip, const float *gates,
                              int64_t key_dim, const float *from, float *to, float *answer) {
  Floats value[V], written[V], asked[kSums][V] = {};
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
    value[v] = load(token.value + v * 16);
    written[v] = value[v] * token.beta;
  }
  const Floats decay = broadcast(token.decay);
  for (int64_t i = 0; i < key_dim; i += kSums)
#pragma GCC unroll 2
    for (int s = 0; s < kSums; ++s) {
      const Floats key = broadcast(token.key[i + s]), query = broadcast(token.query[i + s]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        const int64_t at = ((i + s) * V + v) * 16;
        const Floats row = multiply_add(key, written[v], load(from + at) * decay);
        store(to + at, row);
        asked[s][v] = multiply_add(row, query, asked[s][v]);
      }
    }
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
    const Floats sum = kSums == 2 ? asked[0][v] + asked[kSums - 1][v] : asked[0][v];
    const Floats given = multiply_add(value[v], broadcast(skip), sum);
    store(answer + v * 16, gates == nullptr ? given : given * load(gates + v * 16));
  }
}

// The same by a delta rule.
//
//     S' = decay S + kᵀ d,  d = beta (v - decay k S);  q S' = decay q S + (q k) d
template <int V>
ALWAYS_INLINE void apply_delta(const HeadToken &token, int64_t key_dim, const float *from,
                               float *to, float *answer) {
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

class RecurrenceRunner {
 public:
  RecurrenceRunner(Worker &worker, Late late, RecurrenceScratch &scratch, const Step &step,
                   const Recurrence &recurrence, const RecurrenceBuffers &buffers)
      : worker_(worker), late_(late), s_(step), r_(recurrence), at_(recurrence), buffers_(buffers),
        head_(scratch.head.get()), panel_(scratch.panel.get()), zeros_(scratch.zeros.get()) {}

  void run() {
    worker_.each(s_.num_seqs * r_.num_heads, late_, [&](int64_t i) {
      mix(i / r_.num_heads, i % r_.num_heads);
    });
    const int64_t panels = r_.num_panels(), per_seq = r_.num_heads * panels;
    worker_.each(s_.num_seqs * per_seq, late_, [&](int64_t i) {
      const int64_t seq = i / per_seq, head = i % per_seq / panels, panel = i % panels;
      if (r_.panel_vectors() == 2)
        take_through<2>(seq, head, panel);
      else
        take_through<1>(seq, head, panel);
    });
  }

 private:
  const float *read_slot(int64_t seq) const {
    const int64_t slot = s_.state_reads[seq];
    return slot < 0 ? nullptr : r_.states + slot * r_.slot_floats();
  }
  float *written_slot(int64_t write) const {
    return r_.states + s_.state_write_slots[write] * r_.slot_floats();
  }

  // The product's row of the sequence's token, of those before the step as well.
  const float *row_of(int64_t seq, int64_t index) const {
    if (index >= 0)
      return buffers_.product + (s_.cu_query_lens[seq] + index) * buffers_.product_stride;
    const float *slot = read_slot(seq);
    if (slot == nullptr) return zeros_;
    return slot + r_.matrix_floats() + (r_.num_taps - 1 + index) * at_.num_channels;
  }

  // Everything of a head but S, and of its key head if it is the first of that: of all tokens, and
  // the windows that are kept.
  void mix(int64_t seq, int64_t head) {
    const int64_t share = r_.num_heads / r_.num_key_heads, first = s_.cu_query_lens[seq];
    const int64_t key_head = head / share, column = head * r_.value_dim;
    const int64_t query = at_.query + key_head * r_.key_dim, key = at_.key + key_head * r_.key_dim;
    for (int64_t t = 0; t < s_.cu_query_lens[seq + 1] - first; ++t) {
      const float *rows[kMaxTaps];
      for (int64_t tap = 0; tap < r_.num_taps; ++tap)
        rows[tap] = row_of(seq, t + tap - (r_.num_taps - 1));
      const float *row = rows[r_.num_taps - 1];
      float *to = buffers_.mixed + (first + t) * buffers_.mixed_stride;
      if (head % share == 0 && r_.skip != nullptr) {
        convolve(rows, query, r_.key_dim, to + query);
        convolve(rows, key, r_.key_dim, to + key);
      } else if (head % share == 0) {
        convolve(rows, query, r_.key_dim, head_);
        scale_to_one(1.f / std::sqrt(static_cast<float>(r_.key_dim)), to + query);
        convolve(rows, key, r_.key_dim, head_);
        scale_to_one(1.f, to + key);
        to[at_.key_query + key_head] = product(to + query, to + key);
      }
      convolve(rows, at_.value + column, r_.value_dim, to + at_.value + column);
      for (int64_t i = column; i < column + r_.value_dim; i += 16) {
        const Floats gate = activate(kSilu, load(row + at_.gate + i));
        store(to + at_.gate + i, r_.is_gate_first ? gate : gate * load(r_.norm.weights + i));
      }
      const float alpha = row[at_.alpha + head] + r_.dt_bias[head];
      float step = alpha > 20.f ? alpha : std::log1p(std::exp(alpha));
      if (r_.skip != nullptr) {
        step = std::min(std::max(step, static_cast<float>(r_.min_step)),
                        static_cast<float>(r_.max_step));
        to[at_.mixed_beta + head] = step;
      } else {
        to[at_.mixed_beta + head] =
            static_cast<float>(r_.beta_scale) / (1.f + std::exp(-row[at_.beta + head]));
      }
      to[at_.decay + head] = std::exp(-r_.rates[head] * step);
    }
    for (int64_t w = s_.cu_state_writes[seq]; w < s_.cu_state_writes[seq + 1]; ++w) {
      float *window = written_slot(w) + r_.matrix_floats();
      for (int64_t tap = 0; tap < r_.num_taps - 1; ++tap, window += at_.num_channels) {
        const float *row = row_of(seq, s_.state_write_lens[w] + tap - (r_.num_taps - 1));
        const int64_t value = at_.value + column;
        std::memcpy(window + value, row + value, r_.value_dim * sizeof(float));
        if (head % share != 0) continue;
        std::memcpy(window + query, row + query, r_.key_dim * sizeof(float));
        std::memcpy(window + key, row + key, r_.key_dim * sizeof(float));
      }
    }
  }

  void convolve(const float *const *rows, int64_t channel, int64_t n, float *to) const {
    for (int64_t i = 0; i < n; i += 16) {
      Floats sum = broadcast(0.f);
      if (r_.conv_bias != nullptr) sum = load(r_.conv_bias + channel + i);
      for (int64_t tap = 0; tap < r_.num_taps; ++tap)
        sum = multiply_add(load(rows[tap] + channel + i),
                           load(r_.taps + tap * at_.num_channels + channel + i), sum);
      store(to + i, activate(kSilu, sum));
    }
  }

  void scale_to_one(float scale, float *to) const {
    const float squares = sum_over(head_, r_.key_dim, [](auto v) { return v * v; });
    const float factor = scale / std::sqrt(squares + 1e-6f);
    for (int64_t i = 0; i < r_.key_dim; i += 16) store(to + i, load(head_ + i) * factor);
  }

  float product(const float *a, const float *b) const {
    Floats sum = broadcast(0.f);
    for (int64_t i = 0; i < r_.key_dim; i += 16) sum = multiply_add(load(a + i), load(b + i), sum);
    return sum_of(sum);
  }

  // One panel of a head through the sequence's tokens.
  template <int V>
  void take_through(int64_t seq, int64_t head, int64_t panel) {
    const int64_t first = s_.cu_query_lens[seq], end = s_.cu_query_lens[seq + 1];
    const int64_t key_head = head / (r_.num_heads / r_.num_key_heads);
    const int64_t offset = (head * r_.num_panels() + panel) * r_.panel_floats();
    const int64_t column = head * r_.value_dim + panel * V * 16;
    const float *slot = read_slot(seq), *from = slot == nullptr ? zeros_ : slot + offset;
    int64_t write = s_.cu_state_writes[seq];
    const int64_t end_write = s_.cu_state_writes[seq + 1];
    for (int64_t t = first; t < end; ++t) {
      const float *row = buffers_.mixed + t * buffers_.mixed_stride;
      const auto is_due = [&] {
        return write < end_write && s_.state_write_lens[write] == t + 1 - first;
      };
      float *const to = is_due() ? written_slot(write++) + offset : panel_;
      const HeadToken token{row + at_.query + key_head * r_.key_dim,
                            row + at_.key + key_head * r_.key_dim,
                            row + at_.value + column,
                            row[at_.decay + head],
                            row[at_.mixed_beta + head],
                            row[at_.key_query + key_head]};
      float *const answer = buffers_.answers + t * buffers_.answers_stride + column;
      if (r_.skip != nullptr)
        apply_scan<V>(token, r_.skip[head], r_.is_gate_first ? row + at_.gate + column : nullptr,
                      r_.key_dim, from, to, answer);
      else
        apply_delta<V>(token, r_.key_dim, from, to, answer);
      for (; is_due(); ++write)
        std::memcpy(written_slot(write) + offset, to, r_.panel_floats() * sizeof(float));
      from = to;
    }
  }

  Worker &worker_;
  const Late late_;
  const Step &s_;
  const Recurrence &r_;
  const RecurrenceRow at_;
  const RecurrenceBuffers buffers_;
  float *head_, *panel_;
  const float *zeros_;
};
