// gemm.h behind a plain C ABI, for packed_matrix.py, which compiles it beside that header.
//
// build: amx avx512bf16 avx512 avx2 dotprod neon -ffp-contract=off
#include <vector>

#include "gemm.h"

namespace {

// The product of all rows, as [num_rows][padded n] floats.
template <class E>
void multiply(const Matrix &matrix, const E *rows, int64_t num_rows, int64_t row_stride, bool many,
              float *to) {
  const int64_t num_tiles = num_tiles_of(matrix, num_rows), width = matrix.num_panels() * kColumns;
  std::vector<uint32_t> units(prepared_units(matrix, num_rows) + 1);
  std::vector<float> scales(num_rows);
  std::vector<RowTile> tiles;
  Registers registers;
  for (int64_t t = 0; t < num_tiles; ++t) {
    const int64_t first = tile_start(matrix, num_rows, t), end = tile_start(matrix, num_rows, t + 1);
    tiles.push_back(prepare_rows(matrix, rows + first * row_stride, row_stride,
                                 static_cast<int>(end - first), many,
                                 units.data() + prepared_units(matrix, first),
                                 scales.data() + first));
  }
  for (int64_t panel = 0; panel < matrix.num_panels(); ++panel)
    multiply_panel(matrix, panel, tiles.data(), num_tiles, registers, [&](int64_t t, const float *sums) {
      for (int r = 0; r < tiles[t].num_rows; ++r)
        std::copy(sums + r * kColumns, sums + (r + 1) * kColumns,
                  to + (tile_start(matrix, num_rows, t) + r) * width + panel * kColumns);
    });
}

}  // namespace

extern "C" {
int64_t matrix_bytes() { return sizeof(Matrix); }
int64_t packed_bytes(const Matrix *shape) { return shape->packed_bytes(); }
int32_t widens_bf16() { return !NATIVE_AMX && Bf16Dot::kUnits == 2; }

void pack_f32(const Matrix *shape, const float *const *rows, void *packed, float *scales,
              int32_t *sums) {
  pack_panels(*shape, rows, 0, shape->num_panels(), packed, scales, sums);
}
void pack_bf16(const Matrix *shape, const uint16_t *const *rows, void *packed, float *scales,
               int32_t *sums) {
  pack_panels(*shape, rows, 0, shape->num_panels(), packed, scales, sums);
}
void pack_in_groups(const Matrix *shape, const GroupSources *from) {
  pack_groups(*shape, *from, 0, shape->num_panels());
}
void multiply_f32(const Matrix *matrix, const float *rows, int64_t num_rows, int64_t row_stride,
                  int32_t many, float *to) {
  multiply(*matrix, rows, num_rows, row_stride, many != 0, to);
}
void multiply_bf16(const Matrix *matrix, const uint16_t *rows, int64_t num_rows, int64_t row_stride,
                   int32_t many, float *to) {
  multiply(*matrix, rows, num_rows, row_stride, many != 0, to);
}
}
