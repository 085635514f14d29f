// Forward of bf16 on AMX tiles. Compiler options: flags.cmake. Empty but on x86-64.
#if defined(__x86_64__)
#include "cpu/simd_avx512.h"
#include "cpu/tile_forward.h"

namespace tilewise::cpu {

constinit const TileKernels kAmxTiles = {kTileRows,
                                         32,
                                         Avx512Tiles::kLanes,
                                         &copy_tile_keys<Avx512Tiles>,
                                         &forward_on_tiles<Avx512Tiles, AmxWords>,
                                         &dot_rounds<AmxWords>};

}  // namespace tilewise::cpu
#endif
