// Whether tiling helps, from three numbers: what the roofs allow it to save (the model), what was
// measured, and what part of a layer attention is.
//
//   few rows                          little to gain: no matrix to avoid
//   measured less than 1.15 times     little to gain, with the reason
//   less than 5 % of a layer's time   little to gain: attention is too small a part
//   roofs allow less than 1.15 times  little to gain from tiling: what was measured comes of how
//                                     well the two programs compute, and is said
//   else                              worth it
#include <fmt/format.h>

#include "cli/profile.h"

namespace tilewise::cli {

namespace {

constexpr double kFaster = 1.15;     // less is not worth a change
constexpr double kLayerGain = 0.05;  // of a layer's time; less will not be noticed
constexpr double kFarFromRoof = 0.25;
constexpr double kBusyNeighbours = 0.3;  // cores

std::string percent(double share) {
  return fmt::format("{:.{}f} %", 100 * share, share < 0.0995 ? 1 : 0);
}

double measured_gain(const Profile& p) {
  return p.main.standard.timing.median_s / p.main.tiled.timing.median_s;
}

// How many times faster the roofs allow tiling to be.
double allowed_gain(const Profile& p) {
  const double tiled = p.main.tiled.model.passes_s;
  return tiled > 0 ? p.main.standard.model.passes_s / tiled : 1;
}

std::string memory_text(const Profile& p) {
  return fmt::format("{} of extra memory instead of {}",
                     bytes_text(static_cast<double>(p.main.tiled.workspace_bytes)),
                     bytes_text(static_cast<double>(p.main.standard.workspace_bytes)));
}

std::string length_text(const Profile& p) {
  return p.main.text.packed() ? "these lengths" : fmt::format("n = {}", p.main.text.kv);
}

// Why standard attention is not the slow one here.
std::string reason_of(const Profile& p) {
  const Cost& model = p.main.standard.model;
  if (allowed_gain(p) >= kFaster) {
    return fmt::format("of the {:.1f} times that the roofs allow it reaches {}", allowed_gain(p),
                       percent(p.main.tiled.roof_share()));
  }
  if (2 * model.matrix_bytes <= p.roofs.machine.cache_bytes) {
    return fmt::format("the matrix, {}, fits into the cache", bytes_text(model.matrix_bytes));
  }
  return fmt::format("standard attention is {}-bound here already", name_of(model.bound));
}

// A gain that the bytes do not explain.
std::string all_the_same(const Profile& p) {
  if (measured_gain(p) < kFaster) return "";
  return fmt::format(
      " Tilewise is {:.1f} times as fast as the standard backend all the same, because it reaches "
      "{} of what the roofs allow and that one {}.",
      measured_gain(p), percent(p.main.tiled.roof_share()), percent(p.main.standard.roof_share()));
}

// Where the roof is far above, the comparison says little about what is possible.
std::string far_from_roof(const Profile& p) {
  const ProfiledPath& tiled = p.main.tiled;
  const bool disturbed = p.threads > 1 && p.others_cores > kBusyNeighbours;
  if (tiled.roof_share() >= kFarFromRoof || disturbed) return "";
  return fmt::format(" Both could be faster: Tilewise reaches {} of the {} roof here.",
                     percent(tiled.roof_share()), name_of(tiled.model.bound));
}

std::string decode_text(const Profile& p) {
  const Cost& model = p.main.tiled.model;
  return fmt::format(
      "Little to gain from tiling: with so few rows there is no large matrix, and k and v must be "
      "read in any case, {} at {}. Fewer kv heads or narrower k and v help.",
      decimal_bytes_text(model.bytes()), length_text(p));
}

Advice compared(const Profile& p) {
  const double before = p.main.standard.timing.median_s;
  const double after = p.main.tiled.timing.median_s;
  const double gain = (before - after) / (before + p.layer.rest_s);
  if (p.main.tiled.schedule == Schedule::decode) {
    return {Verdict::little_to_gain, decode_text(p) + all_the_same(p) + far_from_roof(p)};
  }
  if (before < kFaster * after) {
    return {
        Verdict::little_to_gain,
        fmt::format("Little to gain in time: Tilewise is {:.2f} times as fast, because {} ({}).",
                    measured_gain(p), reason_of(p), memory_text(p)) +
            far_from_roof(p)};
  }
  if (gain < kLayerGain) {
    return {Verdict::little_to_gain,
            fmt::format("Little to gain in time: Tilewise is {:.1f} times as fast, but at {} "
                        "attention is {} of the time a layer takes: it will not matter ({}).",
                        measured_gain(p), length_text(p), percent(p.layer.share(before)),
                        memory_text(p))};
  }
  if (allowed_gain(p) < kFaster) {
    return {Verdict::little_to_gain,
            fmt::format("Little to gain from tiling in time: the roofs allow {:.2f} times, because "
                        "{} ({}).",
                        allowed_gain(p), reason_of(p), memory_text(p)) +
                all_the_same(p)};
  }
  return {
      Verdict::worth_it,
      fmt::format("Worth it: Tilewise is {:.1f} times as fast and attention is {} of a layer at "
                  "{}, so the layer takes {} less time, with {}.",
                  measured_gain(p), percent(p.layer.share(before)), length_text(p), percent(gain),
                  memory_text(p)) +
          far_from_roof(p)};
}

}  // namespace

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::worth_it:
      return "worth it";
    case Verdict::little_to_gain:
      return "little to gain";
    case Verdict::not_compared:
      return "not compared";
  }
  return "";
}

Advice advice_of(const Profile& p) {
  const ProfiledPath& tiled = p.main.tiled;
  if (tiled.model.visible_pairs == 0) {
    return {Verdict::not_compared, "Nothing to compute: no row sees a key."};
  }
  if (!p.main.standard.ran()) {
    return {Verdict::not_compared,
            fmt::format("Standard attention was not run ({}); Tilewise takes {} and {} of memory.",
                        p.main.standard.why_not, seconds_text(tiled.timing.median_s),
                        bytes_text(static_cast<double>(tiled.workspace_bytes)))};
  }
  return compared(p);
}

}  // namespace tilewise::cli
