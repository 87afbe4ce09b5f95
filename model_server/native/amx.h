// Products in tiles of AMX: 16 rows, by 16 columns, by 16 words of k, with one instruction.
//
// A row's result has the same bits for any number of rows: an instruction computes every row of a
// tile by itself, in an order that its definition fixes (bfloat16: the even and the odd numbers of a
// word apart, then their sum is added; bytes: exact), and words join in steps of 16, from zero on.
//
// Rows lie step by step: [words / 16][rows][16 words], so that a tile is one contiguous read. Weights
// are the panels of gemm.h, their words padded to a multiple of 16.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace amx {

constexpr int kRows = 16, kStepWords = 16;  // of a tile

// Which registers hold what; the assembler wants their numbers.
//
//     0 1   sums of rows 0 to 15:  of columns 0 to 15, and of columns 16 to 31
//     2 3   sums of rows 16 to 31: the same
//     4 5   the rows
//     6 7   weights of the two halves of the columns

// A thread's tile registers, for as long as it computes a step. Other code of the thread may want
// them in another shape before and after.
class Tiles {
 public:
  Tiles() = default;
  ~Tiles() {
    if (num_rows_ != 0) _tile_release();
  }
  Tiles(const Tiles &) = delete;
  Tiles &operator=(const Tiles &) = delete;

  // Shapes them for up to 32 rows.
  void shape(int num_rows) {
    if (num_rows == num_rows_) return;
    num_rows_ = num_rows;
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } config;
    static_assert(sizeof config == 64, "what the instruction reads");
    const int upper = num_rows < kRows ? num_rows : kRows, lower = num_rows - upper;
    const int rows[] = {upper, upper, lower, lower, upper, lower, kStepWords, kStepWords};
    for (int tile = 0; tile < 8; ++tile) {
      config.rows[tile] = static_cast<uint8_t>(rows[tile]);
      config.row_bytes[tile] = rows[tile] == 0 ? 0 : 64;
    }
    _tile_loadconfig(&config);
  }

 private:
  int num_rows_ = 0;
};

// The sums of a tile of `num_rows` rows over a panel of 32 columns, as [num_rows][32] words: floats,
// or exact integers. The thread's tiles are shaped for the rows. `ahead`: see multiply_tile.
template <bool kIsBytes, bool kIsTall, bool kAhead>
void multiply(const char *weights, int64_t num_words, const uint32_t *rows, int num_rows,
              const char *ahead, void *to) {
  constexpr int64_t kLine = 2 * kStepWords * 4;  // bytes of a word of 32 columns
  // The compiler does not know that tiles are read from memory.
  asm volatile("" ::: "memory");
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kIsTall) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t word = 0; word < num_words; word += kStepWords) {
    if constexpr (kAhead)
#pragma GCC unroll 32
      for (int line = 0; line < 32; ++line) __builtin_prefetch(ahead + line * 64);
    _tile_loadd(4, rows, 64);
    _tile_loadd(6, weights, kLine);
    _tile_loadd(7, weights + 64, kLine);
    if constexpr (kIsTall) _tile_loadd(5, rows + kRows * kStepWords, 64);
    if constexpr (kIsBytes) {
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kIsTall && kIsBytes) {
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
    } else if constexpr (kIsTall) {
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    rows += num_rows * kStepWords;
    weights += kStepWords * kLine;
    ahead += kStepWords * kLine;
  }
  auto *sums = static_cast<char *>(to);
  _tile_stored(0, sums, kLine);
  _tile_stored(1, sums + 64, kLine);
  if constexpr (kIsTall) {
    _tile_stored(2, sums + kRows * kLine, kLine);
    _tile_stored(3, sums + kRows * kLine + 64, kLine);
  }
}

}  // namespace amx
