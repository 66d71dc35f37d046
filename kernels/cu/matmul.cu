// Matrix products of a linear layer with their epilogues, of one weight or of one for each group of rows, and the gradients.
// Contract: kernels/src/matmul/mod.rs. How the products are formed: include/product.cuh.
//
// Names: x [M, K], w [N, K], y [M, N]. The tile of a block is TILE by TILE of the result; blockIdx.x counts tiles, blockIdx.y groups
// of rows. A launch's tiles are as many as the largest group needs; blocks that have none in theirs end at once.
// Products by tensor cores have THREADS threads, those in f32 F32_THREADS; dynamic shared memory is what the operands' steps or the sums need, in one place. Accesses beside the
// operands' are of four elements where `packed`: then columns are a multiple of four, and all begin at multiples of 16 bytes.
#include "activation.cuh"
#include "partials.cuh"
#include "product.cuh"

// Rows of each group: from begin[g] to begin[g + 1].
constexpr uint32_t MOST_GROUPS = 256;
struct Groups {
  uint32_t begin[MOST_GROUPS + 1];
};

// What is made of the sums. `bias` is a row for each group, the others are rows as y's. FORWARD: `pre` is written; with pairs it has twice the columns of y, and so have the sums. INPUT: `pre`
// is the argument of the activation whose gradient is made of the sums, or null; with pairs it and y have twice the sums' columns.
// `partials`, or null: the sums of y's columns, as stored, over each HEIGHT rows.
template <class T, class TO> struct Epilogue {
  const T* bias;
  T* pre;
  const TO* residual;
  TO* y;
  float* partials;
  float scale;
  uint32_t activation, packed;
};

// Where sums that are laid down in shared memory lie: eight columns change places, so that the rows of a fragment lie in different banks.
template <uint32_t TILE> __device__ inline uint32_t sum_at(uint32_t row, uint32_t column) { return row * TILE + (column ^ (row & 3) << 3); }

// Stores that the compiler does not part again.
__device__ inline void store_shared(float* to, float a, float b) {
  asm volatile("st.shared.v2.f32 [%0],{%1,%2};" ::"r"(shared_address(to)), "f"(a), "f"(b) : "memory");
}

__device__ inline void store_shared(float* to, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0],{%1,%2,%3,%4};" ::"r"(shared_address(to)), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

template <uint32_t TILE> __device__ inline void lay_down(float* to, const Sums<TILE>& sums) {
  uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t row = warp / 2 * (TILE / 2) + lane / 4, column = warp % 2 * (TILE / 2) + lane % 4 * 2;
#pragma unroll
  for (uint32_t i = 0; i < TILE / 32; i++) {
#pragma unroll
    for (uint32_t j = 0; j < TILE / 16; j++) {
#pragma unroll
      for (uint32_t half = 0; half < 2; half++) {
        store_shared(to + sum_at<TILE>(row + i * 16 + half * 8, column + j * 8), sums[i][j][2 * half], sums[i][j][2 * half + 1]);
      }
    }
  }
}

template <uint32_t TILE> __device__ inline void lay_down_f32(float* to, const float (&sums)[8][8]) {
  uint32_t row = threadIdx.x / (TILE / 8) * 4, column = threadIdx.x % (TILE / 8) * 4;
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
#pragma unroll
    for (uint32_t j = 0; j < 8; j += 4) {
      float* at = to + sum_at<TILE>(i / 4 * (TILE / 2) + row + i % 4, j / 4 * (TILE / 2) + column);
      store_shared(at, sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]);
    }
  }
}

// Four elements, or, unless rows are WHOLE fours, fewer where a row ends, and the last of them again.
template <bool WHOLE, class T> __device__ inline Run<T, 4> load_some(const T* from, uint32_t count, bool packed) {
  if (packed) return load<4>(from);
  Run<T, 4> to;
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) to.of[i] = from[WHOLE ? i : min(i, count - 1)];
  return to;
}

template <bool WHOLE, class T> __device__ inline void store_some(T* to, const float (&values)[4], uint32_t count, bool packed) {
  Run<T, 4> run;
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) run.of[i] = from_f32<T>(values[i]);
  if (packed) return store(to, run);
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    if (WHOLE || i == 0 || i < count) to[i] = run.of[i];
  }
}

// What a layer is for.
enum Direction { FORWARD, INPUT, WEIGHT };

// Sums over the rows of a tile that one thread makes of its four columns, twice where y has halves. Rows that are equal modulo CLASSES
// are added in their order, then the classes in theirs, whichever tile and however many threads they lie on.
constexpr uint32_t HEIGHT = 64, CLASSES = 8;

template <uint32_t TILE, uint32_t EACH> struct ColumnSums {
  static constexpr uint32_t DOWN = EACH / TILE, OWN = CLASSES / DOWN;
  float of[2][OWN][4] = {};

  __device__ inline void add(uint32_t half, uint32_t turn, uint32_t i, float value) {
#pragma unroll
    for (uint32_t own = 0; own < OWN; own++) of[half][own][i] += turn % OWN == own ? value : 0.0f;
  }

  // Adds the classes up, by way of shared memory that nobody needs any more after a barrier, to row `row` / HEIGHT of the partial sums of
  // `halves` times `columns` columns, and begins anew.
  __device__ inline void put(float* shared, float* partials, uint32_t row, uint32_t column, uint32_t rows, uint32_t columns, uint32_t halves) {
    uint32_t down = threadIdx.x * 4 / TILE, across = threadIdx.x * 4 % TILE;
    __syncthreads();
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
#pragma unroll
      for (uint32_t own = 0; own < OWN; own++) {
        float* at = shared + (half * CLASSES + own * DOWN + down) * TILE + across;
        store_shared(at, of[half][own][0], of[half][own][1], of[half][own][2], of[half][own][3]);
        for (uint32_t i = 0; i < 4; i++) of[half][own][i] = 0.0f;
      }
    }
    __syncthreads();
    if (row >= rows) return;
    auto add_up = [&](uint32_t half, uint32_t within) {
      float sum = 0.0f;
#pragma unroll
      for (uint32_t of = 0; of < CLASSES; of++) sum += shared[(half * CLASSES + of) * TILE + within];
      partials[(size_t(row / HEIGHT) * halves + half) * columns + column + within] = sum;
    };
    // There are threads for the columns of one half, or for those of both at once.
    if constexpr (EACH / 4 == TILE) {
      uint32_t at = threadIdx.x;
      do {
        if (column + at % TILE < columns) add_up(at / TILE, at % TILE);
      } while ((at += TILE) < halves * TILE);
    } else {
      uint32_t half = threadIdx.x / TILE, within = threadIdx.x % TILE;
      if (column + within < columns && half < halves) add_up(half, within);
    }
  }
};

// Makes four results of the tile from its sums `of` on: row y, columns x and on of [rows, columns]. `stored(half, i, value)` sees what is
// written.
template <Direction DIRECTION, uint32_t TILE, bool WHOLE, class T, class TO, class Stored>
__device__ inline void finish_four(const float* sums, const Epilogue<T, TO>& to, uint32_t of, uint32_t width, uint32_t y, uint32_t x, uint32_t columns,
                                   Stored stored) {
  bool pairs = DIRECTION == FORWARD && to.activation == SWIGLU;
  uint32_t every = pairs ? 2 * columns : columns, count = columns - x;
  size_t at = size_t(y) * columns + x;
  float values[4];
#pragma unroll 1
  for (uint32_t parts = pairs + 1; parts > 0; parts--) {
    // Up, then gate.
    uint32_t part = parts - 1;
    auto sum = load<4>(sums + sum_at<TILE>(of / width, of % width + part * width));
    float bias[4] = {};
    if (DIRECTION == FORWARD && to.bias) {
      auto run = load_some<WHOLE>(to.bias + blockIdx.y * size_t(every) + part * columns + x, count, to.packed);
      for (uint32_t i = 0; i < 4; i++) bias[i] = to_f32(run.of[i]);
    }
    for (uint32_t i = 0; i < 4; i++) sum.of[i] = fmaf(to.scale, sum.of[i], bias[i]);
    if (DIRECTION == FORWARD && to.pre) store_some<WHOLE>(to.pre + size_t(y) * every + part * columns + x, sum.of, count, to.packed);
    for (uint32_t i = 0; i < 4; i++) values[i] = part == 0 && pairs ? swiglu(sum.of[i], values[i]) : sum.of[i];
  }
  auto put = [&](size_t at, uint32_t half) {
    if (DIRECTION == WEIGHT || to.residual) {
      auto residual = load_some<WHOLE>(to.residual + at, count, to.packed);
      for (uint32_t i = 0; i < 4; i++) values[i] += to_f32(residual.of[i]);
    }
    store_some<WHOLE>(to.y + at, values, count, to.packed);
    for (uint32_t i = 0; i < 4; i++) stored(half, i, to_f32(from_f32<TO>(values[i])));
  };
  if (DIRECTION == FORWARD && !pairs && to.activation != NONE) {
    for (uint32_t i = 0; i < 4; i++) values[i] = activated(to.activation, values[i]);
  }
  if (DIRECTION == INPUT && to.pre) {
    bool halves = to.activation == SWIGLU;
    at += halves ? size_t(y) * columns : 0;
    auto pre = load_some<WHOLE>(to.pre + at, count, to.packed);
    if (halves) {
      auto up = load_some<WHOLE>(to.pre + at + columns, count, to.packed);
      float of_gate[4];
      for (uint32_t i = 0; i < 4; i++) {
        float dy = values[i];
        of_gate[i] = to_f32(pre.of[i]), values[i] = to_f32(up.of[i]);
        swiglu_gradients(of_gate[i], values[i], dy);
      }
      put(at + columns, 1);
      for (uint32_t i = 0; i < 4; i++) values[i] = of_gate[i];
    } else {
      for (uint32_t i = 0; i < 4; i++) values[i] = __fmul_rn(values[i], derivative(to.activation, to_f32(pre.of[i])));
    }
  }
  put(at, 0);
}

// Makes the results of the tile whose first element is [row, column] of [rows, columns].
template <Direction DIRECTION, uint32_t TILE, bool WHOLE, class T, class TO>
__device__ inline void finish(float* sums, const Epilogue<T, TO>& to, uint32_t row, uint32_t column, uint32_t rows, uint32_t columns) {
  bool pairs = DIRECTION == FORWARD && to.activation == SWIGLU, summed = DIRECTION == INPUT && to.partials;
  uint32_t width = pairs ? TILE / 2 : TILE;
  constexpr uint32_t EACH = 4 * (sizeof(T) == 2 ? THREADS : F32_THREADS<TILE>);
  ColumnSums<TILE, EACH> of_columns;
#pragma unroll 1
  for (uint32_t of = threadIdx.x * 4, turn = 0; turn < TILE * width / EACH; of += EACH, turn++) {
    uint32_t y = row + of / width, x = column + of % width;
    auto add = [&](uint32_t half, uint32_t i, float value) {
      if (DIRECTION == INPUT) of_columns.add(half, turn, i, value);
    };
    if (y < rows && x < columns) finish_four<DIRECTION, TILE, WHOLE>(sums, to, of, width, y, x, columns, add);
    constexpr uint32_t TURNS = HEIGHT * TILE / EACH;
    if (summed && turn % TURNS == TURNS - 1) {
      of_columns.put(sums, to.partials, row + turn / TURNS * HEIGHT, column, rows, columns, to.activation == SWIGLU ? 2 : 1);
    }
  }
}

// Tiles are counted down in bands of eight columns of them, so that blocks that run together read the same rows.
__device__ inline uint2 tile_of(uint32_t across) {
  constexpr uint32_t BAND = 8;
  uint32_t down = gridDim.x / across, band = blockIdx.x / (down * BAND), rest = blockIdx.x % (down * BAND), width = min(BAND, across - band * BAND);
  return {rest / width, band * BAND + rest % width};
}

template <Direction DIRECTION, uint32_t TILE, bool PACKED, class T, class TO>
__device__ inline void layer(const T* a, const T* b, Epilogue<T, TO> to, const Groups& groups, uint32_t rows, uint32_t columns, uint32_t length) {
  extern __shared__ __align__(128) unsigned char shared[];
  constexpr Layout A = DIRECTION == WEIGHT ? ACROSS : ALONG, B = DIRECTION == FORWARD ? ALONG : ACROSS;
  bool pairs = DIRECTION == FORWARD && to.activation == SWIGLU;
  uint32_t width = pairs ? TILE / 2 : TILE, outputs = pairs ? columns / 2 : columns;
  uint2 tile = tile_of((outputs + width - 1) / width);
  uint32_t row = tile.x * TILE, column = tile.y * width;
  size_t begin = groups.begin[blockIdx.y];
  uint32_t count = groups.begin[blockIdx.y + 1] - begin;
  if constexpr (DIRECTION == WEIGHT) {
    // Each group has a result of its own, to which one without rows adds nothing.
    if (count == 0) return;
    length = count, a += begin * rows, b += begin * columns;
    to.y += blockIdx.y * size_t(rows) * columns, to.residual = to.y;
  } else {
    if (row >= count) return;
    rows = count, a += begin * length, b += blockIdx.y * size_t(columns) * length;
    size_t written = DIRECTION == INPUT && to.activation == SWIGLU ? 2 * size_t(outputs) : outputs;
    to.y += begin * written;
    if (to.residual) to.residual += begin * written;
    if (to.pre) to.pre += begin * (DIRECTION == INPUT ? written : columns);
  }
  Operand<T> of_a = {a, rows, length, row, rows, 0}, of_b = {b, columns, length, column, outputs, pairs ? outputs : 0};
  if constexpr (sizeof(T) == 2) {
    Sums<TILE> sums = {};
    product<T, TILE, A, B, PACKED>(sums, of_a, of_b, shared);
    lay_down<TILE>(reinterpret_cast<float*>(shared), sums);
  } else {
    float sums[8][8] = {};
    f32_product<TILE, A, B>(sums, of_a, of_b, shared);
    lay_down_f32<TILE>(reinterpret_cast<float*>(shared), sums);
  }
  __syncthreads();
  // Units of 16 bytes are whole in each row of w and dw.
  constexpr bool WHOLE = PACKED && sizeof(T) == 2 && DIRECTION != FORWARD;
  finish<DIRECTION, TILE, WHOLE>(reinterpret_cast<float*>(shared), to, row, column, rows, outputs);
}

// The elements that a thread has of those of an activation by itself: one run of them.
template <class T, class Work> __device__ inline void for_elements(size_t count, bool packed, Work work) {
  constexpr uint32_t N = 16 / sizeof(T);
  size_t thread = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (packed && thread * N < count) work(thread * N, Count<N>());
  if (!packed && thread < count) work(thread, Count<1>());
}

// Where the gate of an output lies; up is `half` behind it.
__device__ inline size_t gate_of(size_t at, uint32_t half) { return at + at / half * half; }

// y = activation(pre), for `count` elements of y; `half`: columns of y where the activation has pairs.
template <class T> __device__ inline void activate(const T* pre, T* y, size_t count, uint32_t half, uint32_t activation, bool packed) {
  for_elements<T>(count, packed, [&](size_t at, auto run) {
    auto to = load<run.VALUE>(pre + (half ? gate_of(at, half) : at));
    auto up = half ? load<run.VALUE>(pre + gate_of(at, half) + half) : to;
    for (uint32_t i = 0; i < run.VALUE; i++) {
      float x = to_f32(to.of[i]);
      if (activation != NONE) to.of[i] = from_f32<T>(half ? swiglu(x, to_f32(up.of[i])) : activated(activation, x));
    }
    store(y + at, to);
  });
}

// dpre = dy activation'(pre), for `count` elements of dy.
template <class T>
__device__ inline void backward_activation(const T* pre, const T* dy, T* dpre, size_t count, uint32_t half, uint32_t activation, bool packed) {
  for_elements<T>(count, packed, [&](size_t at, auto run) {
    auto from = load<run.VALUE>(dy + at);
    size_t first = half ? gate_of(at, half) : at;
    auto to = load<run.VALUE>(pre + first);
    if (half) {
      auto up = load<run.VALUE>(pre + first + half);
      for (uint32_t i = 0; i < run.VALUE; i++) {
        float of_gate = to_f32(to.of[i]), of_up = to_f32(up.of[i]);
        swiglu_gradients(of_gate, of_up, to_f32(from.of[i]));
        to.of[i] = from_f32<T>(of_gate), up.of[i] = from_f32<T>(of_up);
      }
      store(dpre + first + half, up);
    } else {
      for (uint32_t i = 0; i < run.VALUE; i++) {
        to.of[i] = activation == NONE ? from.of[i] : from_f32<T>(to_f32(from.of[i]) * derivative(activation, to_f32(to.of[i])));
      }
    }
    store(dpre + first, to);
  });
}

// Partial sums of dy's columns; launch: partials.cuh.
template <uint32_t N, class T> __device__ inline void backward_bias(const T* dy, f32* partials, uint32_t rows, uint32_t columns) {
  sum_part<1, N>(rows, columns, partials, [&](uint32_t at, uint32_t row) {
    Terms<1, N> terms;
    auto run = load<N>(dy + size_t(row) * columns + at);
#pragma unroll
    for (uint32_t i = 0; i < N; i++) terms.of[0][i] = to_f32(run.of[i]);
    return terms;
  });
}

#define ELEMENTS(T)                                                                                                                                              \
  extern "C" __global__ void matmul_activate_##T(const T* pre, T* y, size_t count, uint32_t half, uint32_t activation, uint32_t packed) {                        \
    activate<T>(pre, y, count, half, activation, packed);                                                                                                        \
  }                                                                                                                                                              \
  extern "C" __global__ void matmul_backward_activation_##T(const T* pre, const T* dy, T* dpre, size_t count, uint32_t half,                                     \
                                                            uint32_t activation, uint32_t packed) {                                                              \
    backward_activation<T>(pre, dy, dpre, count, half, activation, packed);                                                                                      \
  }                                                                                                                                                              \
  extern "C" __global__ void matmul_backward_bias_##T(const T* dy, f32* partials, uint32_t m, uint32_t n, uint32_t packed) {                                     \
    if (packed) {                                                                                                                                                \
      backward_bias<16 / sizeof(T)>(dy, partials, m, n);                                                                                                         \
    } else {                                                                                                                                                     \
      backward_bias<1>(dy, partials, m, n);                                                                                                                      \
    }                                                                                                                                                            \
  }

ELEMENTS(f32)
ELEMENTS(bf16)
ELEMENTS(f16)

extern "C" __global__ void matmul_add_parts(const f32* partials, uint32_t parts, uint32_t n, f32* db) {
  add_parts<1>(partials, parts, n, {db});
}

#define LAYER(NAME, T, TILE, PACKED, BOUND)                                                                                                                      \
  extern "C" __global__ void __launch_bounds__(BOUND, 2)                                                                                                         \
      matmul_forward_##NAME##_##T(const T* x, const T* w, const T* bias, T* pre, const T* residual, T* y, const __grid_constant__ Groups groups,                 \
                                  uint32_t m, uint32_t n, uint32_t k, float scale, uint32_t activation, uint32_t packed) {                                       \
    layer<FORWARD, TILE, PACKED>(x, w, Epilogue<T, T>{bias, pre, residual, y, nullptr, scale, activation, packed}, groups, m, n, k);                             \
  }                                                                                                                                                              \
  extern "C" __global__ void __launch_bounds__(BOUND, 2)                                                                                                         \
      matmul_backward_input_##NAME##_##T(const T* dy, const T* w, T* pre, const T* residual, T* dx, float* partials,                                             \
                                         const __grid_constant__ Groups groups, uint32_t m, uint32_t n, uint32_t k, float scale, uint32_t activation, uint32_t packed) { \
    layer<INPUT, TILE, PACKED>(dy, w, Epilogue<T, T>{nullptr, pre, residual, dx, partials, scale, activation, packed}, groups, m, k, n);                         \
  }                                                                                                                                                              \
  extern "C" __global__ void __launch_bounds__(BOUND, 2)                                                                                                         \
      matmul_backward_weight_##NAME##_##T(const T* x, const T* dy, float* dw, const __grid_constant__ Groups groups, uint32_t m, uint32_t n,                     \
                                          uint32_t k, float scale, uint32_t packed) {                                                                            \
    layer<WEIGHT, TILE, PACKED>(dy, x, Epilogue<T, float>{nullptr, nullptr, dw, dw, nullptr, scale, NONE, packed}, groups, n, k, m);                             \
  }

LAYER(large, bf16, 128, true, THREADS)
LAYER(small, bf16, 64, true, THREADS)
LAYER(any, bf16, 64, false, THREADS)
LAYER(large, f16, 128, true, THREADS)
LAYER(small, f16, 64, true, THREADS)
LAYER(any, f16, 64, false, THREADS)
LAYER(large, f32, 128, true, F32_THREADS<128>)
LAYER(small, f32, 64, true, F32_THREADS<64>)
