// The replay of the tiles: a toy problem computed step by step in the page, standard attention
// beside the tiled order. Markup and script; the style sheet of the page colours it.
#pragma once

#include <string_view>

namespace tilewise::cli {

std::string_view replay_html();
std::string_view replay_script();

}  // namespace tilewise::cli
