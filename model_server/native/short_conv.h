// A short convolution between two gates: one phase, whose items are channels of a sequence.
//
//     row of the product  | gates of what goes in | values | gates of what comes out |
//
// A slot of the pool holds what went in, gate times value, of the last tokens before a position:
// [num_taps - 1][channels] floats.
#pragma once

#include "product.h"

struct ShortConvBuffers {
  const float *product;
  float *answers;
  int64_t product_stride, answers_stride;
};

class ShortConvRunner {
 public:
  ShortConvRunner(Worker &worker, Late late, const Step &step, const ShortConv &conv,
                  const ShortConvBuffers &buffers)
      : worker_(worker), late_(late), s_(step), c_(conv), buffers_(buffers) {}

  void run() {
    const int64_t parts = (c_.num_channels + kPart - 1) / kPart;
    worker_.each(s_.num_seqs * parts, late_, [&](int64_t item) {
      const int64_t seq = item / parts, first = item % parts * kPart;
      const int64_t end = std::min(c_.num_channels, first + kPart);
      for (int64_t channel = first; channel < end; channel += 16) take_through(seq, channel);
    });
  }

 private:
  static constexpr int64_t kPart = 256;

  // 16 channels through the sequence's tokens.
  void take_through(int64_t seq, int64_t channel) {
    const int64_t first = s_.cu_query_lens[seq], window_len = c_.num_taps - 1;
    for (int64_t t = 0; t < s_.cu_query_lens[seq + 1] - first; ++t) {
      Floats sum = broadcast(0.f);
      if (c_.bias != nullptr) sum = load(c_.bias + channel);
      for (int64_t tap = 0; tap < c_.num_taps; ++tap)
        sum = multiply_add(input(seq, t + tap - window_len, channel),
                           load(c_.taps + tap * c_.num_channels + channel), sum);
      const float *gates = product_row(first + t) + 2 * c_.num_channels;
      store(buffers_.answers + (first + t) * buffers_.answers_stride + channel,
            load(gates + channel) * sum);
    }
    for (int64_t w = s_.cu_state_writes[seq]; w < s_.cu_state_writes[seq + 1]; ++w)
      for (int64_t tap = 0; tap < window_len; ++tap)
        store(c_.states + s_.state_write_slots[w] * c_.slot_floats() + tap * c_.num_channels +
                  channel,
              input(seq, s_.state_write_lens[w] + tap - window_len, channel));
  }

  // What goes in of the sequence's token, of those before the step as well.
  Floats input(int64_t seq, int64_t index, int64_t channel) const {
    if (index >= 0) {
      const float *row = product_row(s_.cu_query_lens[seq] + index) + channel;
      return load(row) * load(row + c_.num_channels);
    }
    if (s_.state_reads[seq] < 0) return broadcast(0.f);
    const float *slot = c_.states + s_.state_reads[seq] * c_.slot_floats();
    return load(slot + (c_.num_taps - 1 + index) * c_.num_channels + channel);
  }

  const float *product_row(int64_t token) const {
    return buffers_.product + token * buffers_.product_stride;
  }

  Worker &worker_;
  const Late late_;
  const Step &s_;
  const ShortConv &c_;
  const ShortConvBuffers buffers_;
};
