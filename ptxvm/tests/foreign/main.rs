//! Code that was not written here, on ptxvm: CUB's algorithms as nvcc compiles them, launched as CUB's own host code does, and
//! kernels that Triton compiled. Every result is compared with a reference in f64 (or exactly), in every way of
//! running, under all checks, and no check may report anything but what is argued to be true beside the test.
//!
//! ```text
//! scripts/foreign-kernels OUT
//! WARPWEFT_FOREIGN_KERNELS=OUT cargo test -p warpweft-ptxvm --features foreign-tests --test foreign
//! ```
#![forbid(unsafe_code)]

mod attention;
mod corpus;
mod cub_block;
mod cub_reduce;
mod cub_scan;
mod cub_select;
mod cub_sort;
mod elementwise;
mod hopper;
mod matmul;
mod norm;
mod numbers;
mod order;
mod random;
mod recording;
mod softmax;
mod triton;
mod vm;

/// A test for each line: its name, what files of the corpus it runs, its body.
macro_rules! foreign {
    ($($name:ident: $($file:literal)+ => $body:path;)*) => {
        $(#[test]
        fn $name() {
            $body(&vm::Ways::all());
        })*

        const FILES: &[&str] = &[$($($file),+),*];
    };
}

foreign! {
    block_exchange: "cub_block.exchange" => cub_block::exchange;
    block_histogram_atomic: "cub_block.histogram_atomic" => cub_block::histogram_atomic;
    block_histogram_sort: "cub_block.histogram_sort" => cub_block::histogram_sort;
    block_merge_sort: "cub_block.merge_sort" => cub_block::merge_sort;
    block_neighbours: "cub_block.neighbours" => cub_block::neighbours;
    block_radix_sort: "cub_block.radix_sort" => cub_block::radix_sort;
    block_reduce_commutative: "cub_block.reduce_commutative" => cub_block::reduce_commutative;
    block_reduce_raking: "cub_block.reduce_raking" => cub_block::reduce_raking;
    block_reduce_warps: "cub_block.reduce_warps" => cub_block::reduce_warps;
    block_run_length_decode: "cub_block.run_length_decode" => cub_block::run_length_decode;
    block_scan_raking: "cub_block.scan_raking" => cub_block::scan_raking;
    block_scan_raking_memoize: "cub_block.scan_raking_memoize" => cub_block::scan_raking_memoize;
    block_scan_warps: "cub_block.scan_warps" => cub_block::scan_warps;
    block_warp_merge_sort: "cub_block.warp_merge_sort" => cub_block::warp_merge_sort;
    block_warps: "cub_block.warps" => cub_block::warps;

    reduce_arg_max_i32: "cub_reduce.arg_max_i32" => cub_reduce::arg_max_i32;
    reduce_merge_keys: "cub_reduce.merge_keys" => cub_reduce::merge_keys;
    reduce_min_f64: "cub_reduce.min_f64" => cub_reduce::min_f64;
    reduce_product_u32: "cub_reduce.product_u32" => cub_reduce::product_u32;
    reduce_segmented_sum_i32: "cub_reduce.segmented_sum_i32" => cub_reduce::segmented_sum_i32;
    reduce_squares_f32: "cub_reduce.squares_f32" => cub_reduce::squares_f32;
    reduce_sum_bf16_one_tile: "cub_reduce.sum_bf16_one_tile" => cub_reduce::sum_bf16_one_tile;
    reduce_sum_by_key: "cub_reduce.sum_by_key" => cub_reduce::sum_by_key;
    reduce_sum_f32: "cub_reduce.sum_f32" => cub_reduce::sum_f32;

    scan_exclusive_max_i32: "cub_scan.exclusive_max_i32" => cub_scan::exclusive_max_i32;
    scan_exclusive_sum_by_key: "cub_scan.exclusive_sum_by_key" => cub_scan::exclusive_sum_by_key;
    scan_exclusive_sum_f32: "cub_scan.exclusive_sum_f32" => cub_scan::exclusive_sum_f32;
    scan_inclusive_affine: "cub_scan.inclusive_affine" => cub_scan::inclusive_affine;
    scan_inclusive_sum_i32: "cub_scan.inclusive_sum_i32" => cub_scan::inclusive_sum_i32;
    scan_inclusive_wide: "cub_scan.inclusive_wide" => cub_scan::inclusive_wide;

    select_adjacent_difference: "cub_select.adjacent_difference" => cub_select::adjacent_difference;
    select_flagged: "cub_select.select_flagged" => cub_select::select_flagged;
    select_for_bulk: "cub_select.for_bulk" => cub_select::for_bulk;
    select_histogram_even: "cub_select.histogram_even" => cub_select::histogram_even;
    select_histogram_u8_channels: "cub_select.histogram_u8_channels" => cub_select::histogram_u8_channels;
    select_if: "cub_select.select_if" => cub_select::select_if;
    select_partition_three: "cub_select.partition_three" => cub_select::partition_three;
    select_run_length_encode: "cub_select.run_length_encode" => cub_select::run_length_encode;
    select_run_length_non_trivial: "cub_select.run_length_non_trivial" => cub_select::run_length_non_trivial;
    select_transform: "cub_select.transform" => cub_select::transform;
    select_unique: "cub_select.select_unique" => cub_select::select_unique;
    select_unique_by_key: "cub_select.unique_by_key" => cub_select::unique_by_key;

    sort_merge_pairs: "cub_sort.merge_pairs" => cub_sort::merge_pairs;
    sort_radix_descending_f32: "cub_sort.radix_descending_f32" => cub_sort::radix_descending_f32;
    sort_radix_keys_i64: "cub_sort.radix_keys_i64" => cub_sort::radix_keys_i64;
    sort_radix_keys_u32_one_tile: "cub_sort.radix_keys_u32_one_tile" => cub_sort::radix_keys_u32_one_tile;
    sort_radix_pairs_u32: "cub_sort.radix_pairs_u32" => cub_sort::radix_pairs_u32;
    sort_segmented_keys_u16: "cub_sort.segmented_keys_u16" => cub_sort::segmented_keys_u16;

    triton_matmul_bf16: "triton_matmul_bf16" => matmul::tiled_bf16;
    triton_matmul_bf16_large: "triton_matmul_bf16_large" => matmul::tiled_bf16_large;
    triton_matmul_f16: "triton_matmul_f16" => matmul::tiled_f16;
    triton_matmul_f16_odd: "triton_matmul_f16_odd" => matmul::tiled_f16_odd;
    triton_matmul_f16_one_warp: "triton_matmul_f16_one_warp" => matmul::tiled_f16_one_warp;
    triton_matmul_ieee: "triton_matmul_ieee" => matmul::tiled_ieee;
    triton_matmul_tf32: "triton_matmul_tf32" => matmul::tiled_tf32;
    triton_matmul_tf32x3: "triton_matmul_tf32x3" => matmul::tiled_tf32x3;
    triton_matmul_split_by_atomics: "triton_matmul_atomic" => matmul::split_by_atomics;
    triton_matmul_split_in_turns: "triton_matmul_turns" => matmul::split_in_turns;
    triton_dequantized_matmul: "triton_dequantized_matmul" => matmul::dequantized;

    triton_softmax_backward: "triton_softmax_backward" => softmax::backward;
    triton_softmax_bf16: "triton_softmax_bf16" => softmax::rows_bf16;
    triton_softmax_f16_one_warp: "triton_softmax_f16_one_warp" => softmax::rows_f16_one_warp;
    triton_softmax_f32: "triton_softmax_f32" => softmax::rows_f32;
    triton_softmax_online: "triton_softmax_online" => softmax::online;
    triton_cross_entropy: "triton_cross_entropy" => softmax::cross_entropy;

    triton_layer_norm_backward: "triton_layer_norm_backward" "triton_layer_norm_weights" => norm::backward;
    triton_layer_norm_f16: "triton_layer_norm_f16" => norm::forward_f16;
    triton_layer_norm_f32: "triton_layer_norm_f32" => norm::forward_f32;
    triton_layer_norm_weights: "triton_layer_norm_weights" => norm::column_sums_of_many_rows;
    triton_rms_norm: "triton_rms_norm" => norm::rms;

    triton_attention_bf16_causal: "triton_attention_bf16_causal" "triton_attention_delta_bf16_causal"
        "triton_attention_backward_keys_bf16_causal" "triton_attention_backward_queries_bf16_causal" => attention::bf16_causal;
    triton_attention_bf16_full: "triton_attention_bf16_full" "triton_attention_delta_bf16_full"
        "triton_attention_backward_keys_bf16_full" "triton_attention_backward_queries_bf16_full" => attention::bf16_full;
    triton_attention_f16_causal: "triton_attention_f16_causal" "triton_attention_delta_f16_causal"
        "triton_attention_backward_keys_f16_causal" "triton_attention_backward_queries_f16_causal" => attention::f16_causal;

    triton_dropout: "triton_dropout" => random::dropout;
    triton_random_integers: "triton_random_integers" => random::integers;
    triton_random_normal: "triton_random_normal" => random::normal;

    triton_arg_extremes: "triton_arg_extremes" => order::arg_extremes;
    triton_compact: "triton_compact" => order::compact;
    triton_cumsum_f64_reverse: "triton_cumsum_f64_reverse" => order::cumsum_f64_reverse;
    triton_cumsum_i32: "triton_cumsum_i32" => order::cumsum_i32;
    triton_gather_rows: "triton_gather_rows" => order::gather_rows;
    triton_grid_reduce: "triton_grid_reduce" => order::grid_reduce;
    triton_histogram: "triton_histogram" => order::histogram;
    triton_last_block_sum: "triton_last_block_sum" => order::last_block_sum;
    triton_linear_recurrence: "triton_linear_recurrence" => order::linear_recurrence;
    triton_permute_within: "triton_permute_within" => order::permute_within;
    triton_scatter_add_f16: "triton_scatter_add_f16" => order::scatter_add_f16;
    triton_scatter_add_f32: "triton_scatter_add_f32" => order::scatter_add_f32;
    triton_sort_f32: "triton_sort_f32" => order::sort_f32;
    triton_sort_i32_descending: "triton_sort_i32_descending" => order::sort_i32_descending;
    triton_sort_i64: "triton_sort_i64" => order::sort_i64;
    triton_top_k: "triton_top_k" => order::top_k;

    triton_adamw: "triton_adamw" => elementwise::adamw;
    triton_float_functions: "triton_float_functions" => elementwise::float_functions;
    triton_gelu: "triton_gelu" => elementwise::gelu;
    triton_integer_functions: "triton_integer_functions" => elementwise::integer_functions;
    triton_narrow_formats: "triton_narrow_formats" => elementwise::narrow_formats;
    triton_rope: "triton_rope" => elementwise::rope;
    triton_swiglu: "triton_swiglu" => elementwise::swiglu;
    triton_transpose: "triton_transpose" => elementwise::transpose;
}

#[test]
fn every_file_of_the_corpus_is_run() {
    let mut run: Vec<&str> = FILES.to_vec();
    run.sort_unstable();
    run.dedup();
    assert_eq!(corpus::stems("", ".json"), run);
}

#[test]
fn kernels_for_hopper_compile() {
    hopper::every_module_compiles();
}
