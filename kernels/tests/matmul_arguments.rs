//! matmul: arguments that it must refuse, and sizes at the edge of what it may take.
#![forbid(unsafe_code)]

mod common;

use common::On;
use warpweft_kernels::matmul::{self, Activation, Epilogue, Shape};

#[test]
fn wrong_arguments_are_named_and_nothing_is_written() {
    let on = On::threads(1);
    let x = on.up(&[0.0f32; 12]);
    let view = |len: usize| x.view(..len).unwrap();
    let attempt = |shape: Shape, w: usize, epilogue: Epilogue<'_, f32>| {
        let mut y = on.up(&[7.0f32; 6]);
        let error = matmul::forward(&on.stream, shape, view(6), view(w), epilogue, y.as_view_mut()).unwrap_err();
        assert_eq!(on.down(&y), [7.0; 6]);
        error.to_string()
    };
    let good = Shape { m: 2, n: 3, k: 3 };
    assert_eq!(attempt(good, 8, Epilogue::default()), "matmul::forward: `w` has 8 elements; its shape 3 x 3 needs 9");
    let bias = Epilogue { bias: Some(view(2)), ..Epilogue::default() };
    assert_eq!(attempt(good, 9, bias), "matmul::forward: `bias` has 2 elements; its shape 3 needs 3");
    let swiglu = Epilogue { activation: Activation::SwiGlu, ..Epilogue::default() };
    assert!(attempt(good, 9, swiglu).starts_with("matmul::forward: `n` is 3; it must be even"));
    let mut pre = on.up(&[0.0f32; 6]);
    let alone = Epilogue { pre: Some(pre.as_view_mut()), ..Epilogue::default() };
    assert!(attempt(good, 9, alone).contains("`pre` is the activation's argument"));
    let huge = Shape { m: usize::MAX, ..good };
    assert!(attempt(huge, 9, Epilogue::default()).contains("more elements than memory can address"));

    // No element, but sizes that no address space has; and very many rows of nothing.
    let (mut none, empty) = (on.up::<f32>(&[]), on.up::<f32>(&[]));
    for (m, n, k) in [(0, usize::MAX, 0), (0, 0, usize::MAX), (usize::MAX, 0, 0)] {
        let (x, w, y) = (empty.as_view(), empty.as_view(), none.as_view_mut());
        let result = matmul::forward(&on.stream, Shape { m, n, k }, x, w, Epilogue::default(), y);
        assert!(result.unwrap_err().to_string().contains("more elements than memory can address"), "{m} {n} {k}");
    }
    let (x, w, y) = (empty.as_view(), empty.as_view(), none.as_view_mut());
    matmul::forward(&on.stream, Shape { m: 1 << 62, n: 0, k: 0 }, x, w, Epilogue::default(), y).unwrap();

    let elsewhere = On::threads(1).up(&[0.0f32; 6]);
    let mut y = on.up(&[7.0f32; 6]);
    let error = matmul::forward(&on.stream, good, elsewhere.as_view(), view(9), Epilogue::default(), y.as_view_mut());
    assert!(error.unwrap_err().to_string().contains("x is on device"));
    let mut dw = on.up(&[7.0f32; 8]);
    let error = matmul::backward_weight(&on.stream, good, view(6), view(6), dw.as_view_mut()).unwrap_err().to_string();
    assert_eq!(error, "matmul::backward_weight: `dw` has 8 elements; its shape 3 x 3 needs 9");
    assert_eq!(on.down(&dw), [7.0; 8]);
}
