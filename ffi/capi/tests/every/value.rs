//! What each argument is when it is right, and which may be null.

use super::{Function, Parameter};

/// Results that are numbers on the host.
const RESULTS: [&str; 9] = ["counted", "dropped", "loss", "margin", "margin_row", "placed", "rank", "sum", "world"];

fn is_result(of: &Parameter) -> bool {
    RESULTS.contains(&of.name.as_str()) && !of.ty.contains("void")
}

/// Whether an argument is an array of the device.
pub(crate) fn is_array(function: &Function, of: &Parameter) -> bool {
    let element = of.ty.trim_start_matches("const ").trim_end_matches('*').trim();
    let numbers = ["double", "float", "int32_t", "int64_t", "uint32_t", "uint64_t", "void"];
    let one = function.kernel && of.ty.matches('*').count() == 1 && numbers.contains(&element);
    one && !is_result(of)
}

/// The struct of settings that a type points to, which says its size.
pub(crate) fn settings(ty: &str) -> Option<&str> {
    let name = ty.strip_prefix("const ")?.strip_suffix('*')?.trim();
    ["_options", "_epilogue", "_through", "_tensor", "_dropout"].iter().any(|end| name.ends_with(end)).then_some(name)
}

/// Sizes that go together, by the argument's name: all else is 8.
fn size(function: &str, argument: &str) -> &'static str {
    match (function, argument) {
        ("ww_optimizer_step" | "ww_norm_scale", "count") => "1",
        ("ww_norm_sum_of_squares" | "ww_norm_sum_of_squares_into", "count") => "1",
        (_, "first" | "root" | "peer" | "to" | "from" | "rank") => "0",
        (_, "ranks" | "world" | "sequences") => "1",
        (_, "experts") => "4",
        _ => "8",
    }
}

/// The argument when it is right.
pub(crate) fn initializer(function: &Function, of: &Parameter) -> String {
    let (name, argument, ty) = (function.name.as_str(), of.name.as_str(), of.ty.as_str());
    if is_array(function, of) {
        return "array()".to_owned();
    }
    let bare = ty.trim_start_matches("const ");
    let value = match (bare, argument) {
        ("size_t", _) => size(name, argument),
        ("float" | "double", "eps") => "1e-5f",
        ("double", "seconds") => "60.0",
        ("float" | "double", "low" | "mean") => "0.0f",
        ("float" | "double", _) => "1.0f",
        ("ww_dtype", _) => "WW_F32",
        ("int32_t", "ndim") => "1",
        // With none there is nothing whose argument could be kept.
        ("ww_activation", _) => "WW_GELU_TANH",
        ("uint64_t", "step") => "1",
        ("ww_write" | "ww_rule" | "ww_score" | "ww_op" | "int32_t" | "int64_t" | "uint64_t", _) => "0",
        ("char *", "name") => "\"cpu:1\"",
        ("char *", _) => "\"x\"",
        ("ww_device *", _) => "device",
        ("ww_stream *", _) => "stream",
        ("ww_buffer *", _) => "buffer",
        ("ww_comm *", _) => "comm",
        ("void *", "cuda_stream") => "NULL",
        ("void *", _) => "host()",
        ("struct DLManagedTensorVersioned *", _) => "tensor",
        ("struct DLManagedTensor *", _) => "older_tensor",
        ("int64_t *", _) => "eight",
        ("size_t *", "counts") if name.starts_with("ww_norm") => "sizes",
        ("size_t *", "counts") => "rows_of_experts",
        ("float *const *", _) => "arrays_of_floats()",
        ("ww_unique_id *", _) => "&id",
        _ if bare.ends_with("**") || bare.ends_with('*') && is_result(of) => "host()",
        // A struct of every.h, which has its name.
        _ => return format!("&{}_value", bare.trim_end_matches(['*', ' '])),
    };
    value.to_owned()
}

/// Functions whose call as it is needs something that is not here: a GPU, a launcher, another rank.
pub(crate) fn works(function: &str) -> bool {
    let apart = ["ww_stream_from_cuda", "ww_comm_create_from_env", "ww_comm_abort", "ww_send", "ww_recv"];
    !apart.contains(&function) && !function.ends_with("_destroy") && !function.ends_with("_close")
}

/// Whether the header lets null stand for something.
pub(crate) fn null_is_allowed(function: &str, argument: &str) -> bool {
    let by_name = match argument {
        "options" => !matches!(function, "ww_optimizer_step" | "ww_optimizer_options_default"),
        "epilogue" | "through" | "seen" | "counted" | "margin" | "margin_row" | "dropped" | "positions" => true,
        "position_table" | "dpositions" | "reason" | "cuda_stream" => true,
        "loss" => function != "ww_moe_balance_loss",
        _ => false,
    };
    let freed = (function.ends_with("_destroy") || function.ends_with("_close")) && function.starts_with("ww_");
    let of_one = [
        ("ww_residual_forward", "bias"),
        ("ww_residual_forward_dropout", "bias"),
        ("ww_moe_router_forward", "bias"),
        ("ww_moe_router_backward", "dscores"),
        ("ww_moe_sort", "keep"),
        ("ww_moe_permute", "weights"),
        ("ww_moe_combine", "weights"),
        ("ww_moe_grouped_forward", "pre"),
    ];
    by_name || freed || of_one.contains(&(function, argument))
}

/// Where null is allowed and the call does more than can be done here again and again, or says for another reason that it
/// does not work.
pub(crate) fn nullable_in_place(function: &str, argument: &str) -> bool {
    matches!((function, argument), ("ww_comm_abort", "reason") | ("ww_stream_from_cuda", "cuda_stream"))
}

/// Sizes that are no part of an array's: any is right.
pub(crate) fn unlimited(_function: &str, argument: &str) -> bool {
    matches!(argument, "capacity" | "all")
}
