//! Each elementwise operation on single numbers: its value, and its slopes as PyTorch has them.

use super::expr::{Binary, Compare, Unary};

pub(super) fn unary(op: Unary, x: f64) -> f64 {
    match op {
        Unary::Neg => -x,
        Unary::Exp => x.exp(),
        Unary::Log => x.ln(),
        Unary::Sqrt => x.sqrt(),
        Unary::Abs => x.abs(),
        Unary::Sigmoid => sigmoid(x),
        Unary::LogSigmoid => -softplus(-x),
        Unary::Softplus => softplus(x),
        Unary::Tanh => x.tanh(),
        Unary::Relu => maximum(x, 0.0),
    }
}

/// The gradient for `x`, given that of the result `y`.
pub(super) fn unary_gradient(op: Unary, x: f64, y: f64, gradient: f64) -> f64 {
    match op {
        Unary::Neg => -gradient,
        Unary::Exp => gradient * y,
        Unary::Log => gradient / x,
        Unary::Sqrt => gradient / (2.0 * y),
        Unary::Abs if x == 0.0 => gradient * 0.0,
        Unary::Abs => gradient * x.signum(),
        Unary::Sigmoid => gradient * (1.0 - y) * y,
        Unary::LogSigmoid => gradient * sigmoid(-x),
        Unary::Softplus => gradient * sigmoid(x),
        Unary::Tanh => gradient * (1.0 - y * y),
        Unary::Relu if y <= 0.0 => 0.0,
        Unary::Relu => gradient,
    }
}

pub(super) fn binary(op: Binary, a: f64, b: f64) -> f64 {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Pow => a.powf(b),
        Binary::Min => minimum(a, b),
        Binary::Max => maximum(a, b),
    }
}

/// The gradient for the left operand, given that of the result.
pub(super) fn left_gradient(op: Binary, a: f64, b: f64, gradient: f64) -> f64 {
    match op {
        Binary::Add | Binary::Sub => gradient,
        Binary::Mul => gradient * b,
        Binary::Div => gradient / b,
        Binary::Pow if b == 0.0 => 0.0,
        Binary::Pow => gradient * (b * a.powf(b - 1.0)),
        Binary::Min => share(a, b, a > b, gradient),
        Binary::Max => share(a, b, a < b, gradient),
    }
}

/// The gradient for the right operand, given that of the result `y`.
pub(super) fn right_gradient(op: Binary, a: f64, b: f64, y: f64, gradient: f64) -> f64 {
    match op {
        Binary::Add => gradient,
        Binary::Sub => -gradient,
        Binary::Mul => gradient * a,
        Binary::Div => -gradient * (a / b / b),
        // The logarithm is infinite at a base of 0, where the power does not change.
        Binary::Pow if a == 0.0 && b >= 0.0 => 0.0,
        Binary::Pow => gradient * (y * a.ln()),
        Binary::Min => share(a, b, b > a, gradient),
        Binary::Max => share(a, b, b < a, gradient),
    }
}

/// What one side of a minimum or maximum gets: half of it at a tie.
fn share(a: f64, b: f64, loses: bool, gradient: f64) -> f64 {
    if loses {
        0.0
    } else if a == b {
        gradient / 2.0
    } else {
        gradient
    }
}

pub(super) fn compare(op: Compare, a: f64, b: f64) -> f64 {
    f64::from(u8::from(match op {
        Compare::Gt => a > b,
        Compare::Ge => a >= b,
        Compare::Lt => a < b,
        Compare::Le => a <= b,
        Compare::Eq => a == b,
        Compare::Ne => a != b,
    }))
}

pub(super) fn clamp(x: f64, low: f64, high: f64) -> f64 {
    minimum(maximum(x, low), high)
}

fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 {
        1.0 / (1.0 + (-x).exp())
    } else {
        let e = x.exp();
        e / (1.0 + e)
    }
}

fn softplus(x: f64) -> f64 {
    maximum(x, 0.0) + (-x.abs()).exp().ln_1p()
}

/// Unlike `f64::min`, passes NaN on.
fn minimum(a: f64, b: f64) -> f64 {
    if a.is_nan() || a < b { a } else { b }
}

/// Unlike `f64::max`, passes NaN on.
fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_far_from_zero() {
        assert_eq!(unary(Unary::LogSigmoid, -1000.0), -1000.0);
        assert_eq!(unary(Unary::LogSigmoid, 1000.0), 0.0);
        assert_eq!(unary(Unary::Softplus, 1000.0), 1000.0);
        assert_eq!(unary(Unary::Sigmoid, -1000.0), 0.0);
    }

    #[test]
    fn nan_passes_through_minimum_and_maximum() {
        for op in [Binary::Min, Binary::Max] {
            assert!(binary(op, f64::NAN, 1.0).is_nan());
            assert!(binary(op, 1.0, f64::NAN).is_nan());
        }
        assert!(clamp(f64::NAN, 0.0, 1.0).is_nan());
        assert!(unary(Unary::Relu, f64::NAN).is_nan());
    }
}
