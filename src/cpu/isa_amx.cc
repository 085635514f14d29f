// bf16 on AMX tiles. Compiler options: flags.cmake. Empty but on x86-64.
#if defined(__x86_64__)
#include "cpu/simd_avx512.h"
#include "cpu/tile_backward.h"
#include "cpu/tile_forward.h"

namespace tilewise::cpu {

using Backward = BackwardOnTiles<Avx512Tiles, AmxWords>;

constinit const TileKernels kAmxTiles = {kTileRows,
                                         32,
                                         Avx512Tiles::kLanes,
                                         &copy_tile_keys<Avx512Tiles>,
                                         &forward_on_tiles<Avx512Tiles, AmxWords>,
                                         Backward::kRows,
                                         Backward::kKeys,
                                         Backward::kWords,
                                         &copy_tile_range<Avx512Tiles>,
                                         &backward_on_tiles<Avx512Tiles, AmxWords>,
                                         &add_tile_d_q<Avx512Tiles, AmxWords>,
                                         &dot_rounds<AmxWords>};

}  // namespace tilewise::cpu
#endif
