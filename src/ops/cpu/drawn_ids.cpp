#include "ops/drawn_ids.h"

#include "ops/cpu/row_loops.h"

namespace miles::MILES_ISA {

void fill_drawn_ids(Exec&, const FillDrawnIdsArgs& args) {
  int32_t* const ids = elements<int32_t>(args.ids);
  const int32_t* const drawn = elements<int32_t>(args.drawn);
  for (int64_t n = 0; n < extent(args.ids, 0); ++n) {
    if (ids[n] >= 0) continue;
    const int32_t id = drawn[-1 - ids[n]];
    ids[n] = id < 0 ? 0 : id;
  }
}

}  // namespace miles::MILES_ISA
