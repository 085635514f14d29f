// What the instruction-set units see of a call: plain structs, addresses resolved, masks turned
// into an interval of keys for each row. No functions: see simd.h for why.
//
// A query tile is `rows` rows of one head, or of the heads of a group in turn (head_group.h), held
// as `panels` panels of `width` rows each, the rows of a panel in SIMD lanes. Lanes past the last
// row repeat its interval and are never stored.
#pragma once

#include <stdint.h>

#include "semantics/philox.h"

namespace tilewise::cpu {

enum class Element : int { f32, bf16, f16 };

// The same for all tiles of a call.
struct Settings {
  Element element = Element::f32;
  int head_dim = 0;
  int value_dim = 0;
  double scale = 1;
  float softcap = 0;  // 0 = off
  bool has_alibi = false;
  bool has_sink = false;
  semantics::Dropout dropout{};
  int panels = 1;      // of a full query tile
  int block_keys = 0;  // keys visited at a time; blocks start at its multiples
  // K or V blocks are copied to scratch: 16-bit elements become floats, and rows come to lie an odd
  // number of cache lines apart, so that a column of a block does not push itself out of the cache.
  bool copy_keys = false;
  bool copy_values = false;
  int64_t key_row = 0;  // floats between rows of the copies
  int64_t value_row = 0;
};

// Rows of one head in memory; or, where `strip` is not 0, floats in strips of `stride` columns:
// [dim / stride] strips, `strip` floats apart, each [rows, stride].
struct Rows {
  const void* data = nullptr;  // [rows, dim]
  int64_t stride = 0;          // elements
  int64_t strip = 0;
};
struct OutputRows {
  void* data = nullptr;
  int64_t stride = 0;
};

// What the lanes of a tile of several heads do not share.
struct GroupLane {
  int64_t row = 0;   // beyond the tile's first
  int64_t head = 0;  // beyond the tile's
  float slope = 0;
  float sink = 0;
};

// One query tile.
struct Tile {
  Rows q;                     // [rows, head_dim]
  Rows k;                     // [kv_len, head_dim], the whole sequence
  Rows v;                     // [kv_len, value_dim]
  int rows = 0;               // real rows
  int64_t first_row = 0;      // in the sequence
  double diagonal = 0;        // key at which the first row stands: first_row + off
  uint64_t dropout_head = 0;  // batch * q_heads + head
  float slope = 0;            // ALiBi
  float sink = 0;
  const GroupLane* lanes = nullptr;    // [panels * width]; null: lane r is row r of the one head
  const int64_t* key_begin = nullptr;  // [panels * width] visible keys of each lane: neither
  const int64_t* key_end = nullptr;    // begin nor end ever decreases
};

struct ForwardTile : Tile {
  // Copies of K and V made beforehand (key_copies.h), for blocks from key 0 on; null: there are
  // none, or none of K.
  const float* key_copy = nullptr;
  const float* value_copy = nullptr;
  OutputRows out;        // [rows, value_dim]
  float* lse = nullptr;  // [rows]
};

// The scratch of one worker. Row strides of copies are head_dim or value_dim rounded up to whole
// vectors; the rest is zero.
struct ForwardScratch {
  float* queries = nullptr;  // [panels, head_dim, width], scaled
  float* outs = nullptr;     // [panels, value_dim, width], not yet divided by the sums
  float* maxima = nullptr;   // [panels, width]
  float* sums = nullptr;     // [panels, width]
  float* factors = nullptr;  // [width]
  float* scores = nullptr;   // [block_keys, width]
  float* keep = nullptr;     // [block_keys, width] dropout factors
  float* keys = nullptr;     // [block_keys, head_dim]
  float* values = nullptr;   // strips of a block
  // On matrix tiles: [2, tile rows, block_keys]. There the queries are bf16 rows, maxima are
  // references, sums two vectors a row, outs rows; scores are cut as the kernel likes.
  uint16_t* weights = nullptr;
};

// One query tile of one head against the keys [range_begin, range_end) of a task.
struct BackwardTile : Tile {
  Rows d_out;                    // [rows, value_dim]
  const float* lse = nullptr;    // [rows] natural log
  const float* delta = nullptr;  // [rows] rowsum(d_out * out) - d_lse
  // [panels * width] 1: the lane must not contribute (padding, lse -inf, one visible key)
  const unsigned char* idle = nullptr;
  int64_t range_begin = 0;
  int64_t range_end = 0;
  // The range as floats, in rows of settings.key_row and settings.value_row. Not for `standard`.
  const float* keys = nullptr;
  const float* values = nullptr;
  // Sums over the range, rows rounded up to whole vectors; null = not wanted.
  float* d_k = nullptr;  // [range, head_dim], without `scale`
  float* d_v = nullptr;  // [range, value_dim]
  OutputRows d_q;        // [rows, head_dim] floats to add to
};

struct BackwardScratch {
  float* queries = nullptr;     // [panels, head_dim, width], scaled
  float* d_outs = nullptr;      // [panels, value_dim, width]
  float* query_rows = nullptr;  // [panels * width, head_dim]
  float* d_out_rows = nullptr;  // [panels * width, value_dim]
  float* d_queries = nullptr;   // [panels, head_dim, width], without `scale`
  float* weights = nullptr;     // [block_keys, panels * width] scores, then P
  float* d_scores = nullptr;    // [block_keys, panels * width] dP, then dS
  float* keep = nullptr;        // [block_keys, width]
  float* lse_log2 = nullptr;    // [panels, width]
  float* delta = nullptr;       // [panels, width]
  float* keys = nullptr;        // [block_keys, head_dim]
  float* values = nullptr;      // [block_keys, value_dim]
  // On matrix tiles (tile_backward.h): P, dS and pairs of dS. There queries and d_outs are tiles of
  // transposed rows, query_rows and d_out_rows tiles of rows, weights and d_scores a strip.
  uint16_t* words = nullptr;
};

// One query tile of standard attention: its slices of the matrices in memory, [kv_len, rows] with
// `panels * width` floats a row, whole.
struct StandardTile : BackwardTile {
  float* scores = nullptr;    // S, then P
  float* d_scores = nullptr;  // dP, then dS; null in forward
  int64_t kv_len = 0;
  OutputRows out;                // forward
  float* lse_out = nullptr;      // forward
  const float* d_lse = nullptr;  // backward
};

// Rows as floats, `row` floats apart, zeros up to whole vectors.
struct RowsToCopy {
  Rows from;
  int64_t rows = 0;
  int dim = 0;
  float* to = nullptr;
  int64_t row = 0;
};

// Keys [begin, end) of a sequence to copy, where `begin` starts a block.
struct KeysToCopy {
  Rows k;
  Rows v;
  int64_t begin = 0;
  int64_t end = 0;
  float* keys = nullptr;    // of key 0 of the sequence; null: not wanted
  float* values = nullptr;  // of block 0 of the sequence
};

struct RowsToWrite {
  Rows floats;
  float factor = 1;
  int64_t rows = 0;
  int dim = 0;
  Element element = Element::f32;
  OutputRows to;
};

// Parts of the keys of a tile of one panel. Their maxima, sums and outs lie `floats` apart.
struct KeyParts {
  int64_t count = 1;
  int64_t floats = 0;
};

using CopyKeys = void(const Settings&, const KeysToCopy&);
using ForwardOfTile = void(const Settings&, const ForwardTile&, const ForwardScratch&);
using MergeParts = void(const Settings&, const ForwardTile&, const ForwardScratch&,
                        const KeyParts&);

using BackwardOfTile = void(const Settings&, const BackwardTile&, const BackwardScratch&);

// bf16 on matrix tiles (tile_forward.h, tile_backward.h): dimensions are padded to whole tiles.
struct TileKernels {
  int rows;     // of a panel
  int columns;  // that dimensions are padded to
  int lanes;    // floats of a row's sum
  CopyKeys* copy_keys;
  ForwardOfTile* forward_tile;
  int backward_rows;     // of a query tile
  int strip_keys;        // that ranges are padded to
  int backward_words;    // of BackwardScratch::words
  CopyKeys* copy_range;  // K and V of a range, to its start; K twice
  BackwardOfTile* backward_tile;
  BackwardOfTile* add_d_q;
  // Rounds of independent products of tiles; returns how many FLOPs that was.
  double (*dot_rounds)(int64_t rounds);
};

// Forward in vectors, for panels of one width.
struct ForwardKernels {
  int width;        // rows of a panel
  int strip_width;  // columns of V that a copy keeps together
  ForwardOfTile* forward_tile;
  ForwardOfTile* attend_part;  // leaves maxima, sums and outs in scratch
  MergeParts* merge_parts;     // scratch: of the first part
  CopyKeys* copy_keys;
};

// Forward of bf16 in vectors that multiply pairs (pairs.h); the widths are those of Kernels.
struct PairKernels {
  ForwardKernels wide;
  ForwardKernels narrow;
  ForwardKernels thin;
  // Rounds of independent products; returns how many FLOPs that was.
  double (*dot_rounds)(int64_t rounds);
};

// What an instruction-set unit exports.
struct Kernels {
  const char* name;
  const TileKernels* tiles;  // null: none
  const PairKernels* pairs;  // null: none
  int lanes;
  int width;  // rows of a panel, wide
  ForwardKernels wide;
  ForwardKernels narrow;  // where there is none, the same
  ForwardKernels thin;    // one vector of rows
  void (*copy_rows)(const Settings&, const RowsToCopy&);
  // Adds to d_k and d_v; leaves d_q in scratch.d_queries, for add_d_q().
  BackwardOfTile* backward_tile;
  BackwardOfTile* add_d_q;
  // [rows, dim] floats, rows in whole vectors or not, times `factor`, as elements.
  void (*write_rows)(const RowsToWrite&);
  // Standard attention, pass by pass (standard.h).
  void (*standard_products)(const Settings&, const StandardTile&, const BackwardScratch&);
  void (*standard_softmax)(const Settings&, const StandardTile&);
  void (*standard_out)(const Settings&, const StandardTile&, const BackwardScratch&);
  void (*standard_d_scores)(const Settings&, const StandardTile&);
  void (*standard_d_q)(const Settings&, const StandardTile&, const BackwardScratch&);
  void (*standard_d_kv)(const Settings&, const StandardTile&, const BackwardScratch&);
  // Rounds of independent multiply-adds; returns how many FLOPs that was.
  double (*fma_rounds)(int64_t rounds);
};

extern const Kernels kScalarKernels;
extern const Kernels kAvx2Kernels;  // this and the next three: on x86-64
extern const Kernels kAvx512Kernels;
extern const TileKernels kAmxTiles;  // this and the next: beside kAvx512Kernels
extern const PairKernels kAvx512PairKernels;
extern const Kernels kNeonKernels;          // on AArch64
extern const PairKernels kNeonPairKernels;  // beside kNeonKernels

}  // namespace tilewise::cpu
