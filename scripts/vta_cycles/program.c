/* Cycles of a program for VTA from its operations: places of tiles, loads of micro-ops, dependencies, events.
 *
 * The same rules as codegen/placement.py and codegen/estimate.py of the package, for tiles of one size in each memory.
 * Compile: cc -O2 -shared -fPIC program.c -o program.so
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { INP, WGT, ACC, MEMORIES };
enum { LOAD, COMPUTE, STORE, MODULES };

/* An operation before places are known. Operands are tiles, -1 for none, with the part of the tile that is used; the
 * first one of compute and of a load is written, all of compute are read. */
typedef struct {
  int32_t module, cycles, bus, is_load, uop, uops;
  int32_t tile[3], low[3], size[3];
} Operation;

typedef struct {
  int32_t memory, first, last, contents;
} Tile;

typedef struct {
  int32_t depth[MEMORIES], uop_depth, turns;
  int32_t empty, bus_bytes, burst_bytes, read_latency, fetch_instructions, queue_depth;
} Costs;

typedef struct {
  int32_t module, cycles, bus, after[3], is_uop_load, kernel;
  int32_t memory[3], begin[3], end[3], operands, writes_only;
} Step;

static int burst_count(const Costs *c, int64_t first, int64_t length) {
  return (int)((first + length - 1) / c->burst_bytes - first / c->burst_bytes + 1);
}

static int by_first(const void *a, const void *b) {
  const int32_t *left = a, *right = b;
  return left[0] != right[0] ? (left[0] < right[0] ? -1 : 1) : (left[1] < right[1] ? -1 : left[1] > right[1]);
}

/* Places of the tiles of one memory, all of `size` elements; 0 if one does not fit. */
static int place(const Costs *c, int memory, int size, const Tile *tiles, int count, int32_t *base, uint8_t *loaded) {
  int depth = c->depth[memory], members = 0, edges = 0, turns = 0, residents = 0, result = 1;
  int32_t(*order)[2] = malloc(sizeof(int32_t[2]) * (count + 1));
  int32_t *until = malloc(sizeof(int32_t) * depth), *taken = malloc(sizeof(int32_t) * (depth + 1));
  uint8_t *edge = calloc(depth + 1, 1);
  int32_t *resident_base = malloc(sizeof(int32_t) * (depth + 1)), *resident_key = malloc(sizeof(int32_t) * (depth + 1));
  (void)edges;
  for (int i = 0; i < count; i++)
    if (tiles[i].memory == memory) {
      order[members][0] = tiles[i].first;
      order[members++][1] = i;
    }
  qsort(order, members, sizeof(*order), by_first);
  for (int i = 0; i < depth; i++) until[i] = -1;
  edge[0] = edge[depth] = 1;
  for (int m = 0; m < members; m++) {
    int number = order[m][1], found = -1;
    const Tile *tile = &tiles[number];
    loaded[number] = 0;
    if (tile->contents >= 0)
      for (int r = 0; r < residents; r++)
        if (resident_key[r] == tile->contents) found = resident_base[r];
    if (found >= 0) {
      loaded[number] = 1;
    } else {
      int best_age = 0;
      for (int pass = turns >= c->turns ? 0 : 1; pass < 2 && found < 0; pass++) {
        int candidates = pass == 0 ? turns : 2 * (depth + 1);
        for (int k = 0; k < candidates; k++) {
          int at;
          if (pass == 0) {
            at = taken[k];
          } else {
            if (!edge[k >> 1]) continue;
            at = (k & 1) ? (k >> 1) - size : (k >> 1);
            if (at < 0 || at + size > depth) continue;
          }
          int age = -1;
          for (int e = at; e < at + size; e++)
            if (until[e] > age) age = until[e];
          if (age >= tile->first) continue;
          if (found < 0 || age < best_age || (age == best_age && at < found)) best_age = age, found = at;
        }
      }
      if (found < 0) {
        result = 0;
        break;
      }
      int known = 0;
      for (int k = 0; k < turns; k++) known |= taken[k] == found;
      if (!known) taken[turns++] = found;
      int kept = 0;
      for (int r = 0; r < residents; r++)
        if (!(resident_base[r] < found + size && found < resident_base[r] + size)) {
          resident_base[kept] = resident_base[r];
          resident_key[kept++] = resident_key[r];
        }
      residents = kept;
      if (tile->contents >= 0) {
        resident_base[residents] = found;
        resident_key[residents++] = tile->contents;
      }
      edge[found] = edge[found + size] = 1;
    }
    base[number] = found;
    for (int e = found; e < found + size; e++)
      if (until[e] < tile->last) until[e] = tile->last;
  }
  free(order), free(until), free(taken), free(edge), free(resident_base), free(resident_key);
  return result;
}

typedef struct {
  int32_t uop, uops, at[3];
  int32_t begin, resident;
} Kernel;

static int kernel_of(Kernel *kernels, int *count, int32_t *table, int mask, const Operation *op, const int32_t *at) {
  uint64_t hash = (uint64_t)op->uop * 0x9E3779B97F4A7C15ull ^ (uint64_t)op->uops;
  for (int i = 0; i < 3; i++) hash = (hash ^ (uint64_t)(at[i] + 1)) * 0xBF58476D1CE4E5B9ull, hash ^= hash >> 29;
  for (int slot = (int)(hash & mask);; slot = (slot + 1) & mask) {
    int known = table[slot];
    if (known < 0) {
      Kernel row = {op->uop, op->uops, {at[0], at[1], at[2]}, 0, -1};
      kernels[*count] = row;
      table[slot] = *count;
      return (*count)++;
    }
    Kernel *k = &kernels[known];
    if (k->uop == op->uop && k->uops == op->uops && !memcmp(k->at, at, sizeof(k->at))) return known;
  }
}

static void uop_load(Step *step, const Costs *c, int first, int count) {
  int64_t bytes = (int64_t)count * 4;
  memset(step, 0, sizeof(*step));
  step->module = COMPUTE, step->is_uop_load = 1, step->kernel = -1;
  step->bus = (int)((bytes + c->bus_bytes - 1) / c->bus_bytes) + burst_count(c, (int64_t)first * 4, bytes);
  step->cycles = c->read_latency + step->bus;
  step->after[0] = step->after[1] = step->after[2] = -1;
}

static int64_t run(const Step *steps, int count, const Costs *c) {
  int32_t *members[MODULES], length[MODULES] = {0}, next[MODULES] = {0};
  int64_t free_at[MODULES] = {0}, bus_free = 0, last = 0;
  int32_t *position = malloc(sizeof(int32_t) * count);
  int64_t *start = malloc(sizeof(int64_t) * count), *end = malloc(sizeof(int64_t) * count);
  int64_t *handed = malloc(sizeof(int64_t) * (count + 1));
  int given = 0, done = 0;
  for (int m = 0; m < MODULES; m++) members[m] = malloc(sizeof(int32_t) * (count + 1));
  for (int i = 0; i < count; i++) {
    int m = steps[i].module;
    position[i] = length[m];
    members[m][length[m]++] = i;
    start[i] = end[i] = -1;
  }
  while (done < count) {
    int64_t fetch = -1, best = -1;
    int chosen = -1;
    if (given < count) {
      fetch = given ? handed[given - 1] + 1 : 0;
      int m = steps[given].module;
      if (position[given] >= c->queue_depth) {
        int64_t begun = start[members[m][position[given] - c->queue_depth]];
        fetch = begun < 0 ? -1 : (fetch > begun + 1 ? fetch : begun + 1);
      }
    }
    for (int m = 0; m < MODULES; m++) {
      if (next[m] == length[m]) continue;
      int i = members[m][next[m]], ready = 1;
      if (i >= given) continue;
      int64_t time = free_at[m] > handed[i] ? free_at[m] : handed[i];
      for (int a = 0; a < 3; a++) {
        int earlier = steps[i].after[a];
        if (earlier < 0) continue;
        if (end[earlier] < 0) {
          ready = 0;
          break;
        }
        if (end[earlier] > time) time = end[earlier];
      }
      if (ready && (chosen < 0 || time < best)) best = time, chosen = m;
    }
    if (fetch >= 0 && (chosen < 0 || fetch <= best)) {
      if (given % c->fetch_instructions == 0) {
        int chunk = count - given < c->fetch_instructions ? count - given : c->fetch_instructions;
        int64_t bytes = (int64_t)chunk * 16;
        int64_t from = fetch + c->read_latency;
        bus_free = (from > bus_free ? from : bus_free) + (bytes + c->bus_bytes - 1) / c->bus_bytes +
                   (bytes + c->burst_bytes - 1) / c->burst_bytes;
        if (bus_free > fetch) fetch = bus_free;
      }
      handed[given++] = fetch;
      continue;
    }
    if (chosen < 0) {
      last = -1;
      break;
    }
    int i = members[chosen][next[chosen]++];
    int64_t finish = best + steps[i].cycles;
    if (steps[i].bus) {
      int64_t from = best + c->read_latency;
      bus_free = (from > bus_free ? from : bus_free) + steps[i].bus;
      if (bus_free > finish) finish = bus_free;
    }
    start[i] = best, end[i] = free_at[chosen] = finish;
    if (finish > last) last = finish;
    done++;
  }
  for (int m = 0; m < MODULES; m++) free(members[m]);
  free(position), free(start), free(end), free(handed);
  return last;
}

/* Cycles of a program; -1 if its tiles do not fit. */
int64_t program_cycles(const Costs *c, const Tile *tiles, int tile_count, const int32_t *sizes, const Operation *ops,
                       int count) {
  int32_t *base = malloc(sizeof(int32_t) * (tile_count + 1));
  uint8_t *loaded = malloc(tile_count + 1);
  int64_t cycles = -1;
  int fits = 1;
  for (int m = 0; m < MEMORIES && fits; m++) fits = place(c, m, sizes[m], tiles, tile_count, base, loaded);
  if (!fits) {
    free(base), free(loaded);
    return -1;
  }
  int mask = 1;
  while (mask < 4 * (count + 1)) mask <<= 1;
  int32_t *table = malloc(sizeof(int32_t) * mask);
  for (int i = 0; i < mask; i++) table[i] = -1;
  mask--;
  Kernel *kernels = malloc(sizeof(Kernel) * (count + 1));
  Step *plain = malloc(sizeof(Step) * (count + 1)), *steps = malloc(sizeof(Step) * (2 * count + 8));
  int kernel_count = 0, number = 0, total = 0;
  for (int i = 0; i < count; i++) {
    const Operation *op = &ops[i];
    if (op->is_load && loaded[op->tile[0]]) continue;
    Step *s = &plain[number++];
    memset(s, 0, sizeof(*s));
    s->module = op->module, s->cycles = op->cycles, s->bus = op->bus, s->kernel = -1;
    s->after[0] = s->after[1] = s->after[2] = -1;
    s->writes_only = op->is_load;
    int32_t at[3] = {op->low[0], op->low[1], op->low[2]};
    for (int k = 0; k < 3 && op->tile[k] >= 0; k++) {
      s->memory[k] = tiles[op->tile[k]].memory;
      at[k] = s->begin[k] = base[op->tile[k]] + op->low[k];
      s->end[k] = s->begin[k] + op->size[k];
      s->operands++;
    }
    if (op->uops) s->kernel = kernel_of(kernels, &kernel_count, table, mask, op, at);
  }
  for (int k = 0; k < kernel_count; k++) kernels[k].begin = total, total += kernels[k].uops;
  int length = 0, cursor = 0;
  if (total && total <= c->uop_depth) {
    uop_load(&steps[length++], c, 0, total);
    for (int k = 0; k < kernel_count; k++) kernels[k].resident = kernels[k].begin;
  }
  for (int i = 0; i < number; i++) {
    int k = plain[i].kernel;
    if (k >= 0 && kernels[k].resident < 0) {
      if (cursor + kernels[k].uops > c->uop_depth) cursor = 0;
      int end = cursor + kernels[k].uops;
      for (int o = 0; o < kernel_count; o++) {
        int at = kernels[o].resident;
        if (at >= 0 && at < end && at + kernels[o].uops > cursor) kernels[o].resident = -1;
      }
      kernels[k].resident = cursor;
      uop_load(&steps[length++], c, kernels[k].begin, kernels[k].uops);
      cursor = end;
    }
    steps[length++] = plain[i];
  }
  /* Of each element of each memory the last step of each module that read it, and that wrote it. */
  int32_t *read[MEMORIES], *written[MEMORIES], last[MODULES] = {-1, -1, -1};
  for (int m = 0; m < MEMORIES; m++) {
    size_t elements = (size_t)c->depth[m] * MODULES;
    read[m] = malloc(sizeof(int32_t) * elements), written[m] = malloc(sizeof(int32_t) * elements);
    for (size_t e = 0; e < elements; e++) read[m][e] = written[m][e] = -1;
  }
  for (int i = 0; i < length; i++) {
    Step *s = &steps[i];
    int32_t latest[MODULES] = {-1, -1, -1};
    int is_store = s->module == STORE;
    for (int k = 0; k < s->operands; k++) {
      int writes = s->writes_only || (!is_store && k == 0), reads = !s->writes_only;
      for (int e = s->begin[k]; e < s->end[k]; e++)
        for (int m = 0; m < MODULES; m++) {
          int w = written[s->memory[k]][e * MODULES + m], r = read[s->memory[k]][e * MODULES + m];
          if ((reads || writes) && w > latest[m]) latest[m] = w;
          if (writes && r > latest[m]) latest[m] = r;
        }
    }
    for (int m = 0; m < MODULES; m++) s->after[m] = m == s->module ? -1 : latest[m];
    for (int k = 0; k < s->operands; k++) {
      int writes = s->writes_only || (!is_store && k == 0), reads = !s->writes_only;
      for (int e = s->begin[k]; e < s->end[k]; e++) {
        if (reads) read[s->memory[k]][e * MODULES + s->module] = i;
        if (writes) written[s->memory[k]][e * MODULES + s->module] = i;
      }
    }
    last[s->module] = i;
  }
  for (int extra = 0; extra < 2; extra++) {
    Step *s = &steps[length++];
    memset(s, 0, sizeof(*s));
    s->module = COMPUTE, s->cycles = c->empty;
    s->after[0] = extra ? -1 : last[LOAD], s->after[1] = extra ? -1 : last[STORE], s->after[2] = -1;
  }
  cycles = run(steps, length, c);
  for (int m = 0; m < MEMORIES; m++) free(read[m]), free(written[m]);
  free(base), free(loaded), free(table), free(kernels), free(plain), free(steps);
  return cycles;
}
