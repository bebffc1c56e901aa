//! [`Expr`]: a formula over logprobs and datum inputs, built but not yet computed.

use std::fmt;
use std::sync::Arc;

use super::kernel;

/// A formula over a datum's logprobs and loss inputs.
///
/// Start from [`logprobs`] and [`input`], combine with `+ - * /` (numbers may stand on either
/// side) and the methods below, and end with a scalar: [`sum`](Self::sum) or
/// [`mean`](Self::mean). Nothing is computed until the loss is evaluated, so a formula can be
/// differentiated, evaluated for many datums, or sent to the service.
///
/// Values follow PyTorch: shapes broadcast aligned at the right, and the gradient at a point
/// where a function has none is the one PyTorch picks (each method says which). Arithmetic is
/// done in `f64`; gradients are rounded to `f32` at the end.
///
/// Cloning is cheap, and methods borrow, so a subformula can be used many times. It is
/// computed once.
///
/// ```
/// use tinker::loss::{input, logprobs};
///
/// let ratio = (logprobs() - input("old_logprobs")).exp();
/// let loss = -(&ratio * input("advantages")).sum();
/// # let _ = loss;
/// ```
#[derive(Clone)]
pub struct Expr(Arc<Node>);

/// One operation and its operands.
pub(super) struct Node {
    pub(super) op: Op,
    pub(super) args: Vec<Expr>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Op {
    Constant(f64),
    Variable(Variable),
    Unary(Unary),
    Binary(Binary),
    Compare(Compare),
    Clamp {
        low: f64,
        high: f64,
    },
    /// Condition, value where it is not zero, value where it is.
    Select,
    Sum(Option<i64>),
    Mean(Option<i64>),
    Unsqueeze(i64),
    Detach,
}

/// A datum's tensor. `datum` is `None` where the formula is applied to each datum in turn.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Variable {
    pub(super) datum: Option<usize>,
    pub(super) tensor: TensorName,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum TensorName {
    Logprobs,
    Input(Arc<str>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unary {
    Neg,
    Exp,
    Log,
    Sqrt,
    Abs,
    Sigmoid,
    LogSigmoid,
    Softplus,
    Tanh,
    Relu,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Min,
    Max,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compare {
    Gt,
    Ge,
    Lt,
    Le,
    Eq,
    Ne,
}

/// The log probabilities the model gives the datum's target tokens.
///
/// They have the shape of `target_tokens`: `[T]`, or `[T, K]` for several candidates per
/// position. Gradients are taken with respect to them. Inside [`batch`](super::batch), use
/// [`DatumVars::logprobs`](super::DatumVars::logprobs) instead.
pub fn logprobs() -> Expr {
    Expr::variable(None, TensorName::Logprobs)
}

/// The tensor the datum carries under `name` in its loss inputs; constant for the gradient.
///
/// Integer tensors are read as numbers and sparse ones as dense, with zeros where nothing is
/// stored. Inside [`batch`](super::batch), use
/// [`DatumVars::input`](super::DatumVars::input) instead.
pub fn input(name: &str) -> Expr {
    Expr::variable(None, TensorName::Input(name.into()))
}

impl Expr {
    /// A number. Most methods and operators take an `f64` directly.
    pub fn constant(value: f64) -> Self {
        Self::new(Op::Constant(value), Vec::new())
    }

    /// `e` to the power of each element.
    pub fn exp(&self) -> Self {
        self.unary(Unary::Exp)
    }

    /// The natural logarithm of each element.
    #[doc(alias = "ln")]
    pub fn log(&self) -> Self {
        self.unary(Unary::Log)
    }

    /// The square root of each element; the slope at 0 is infinite.
    pub fn sqrt(&self) -> Self {
        self.unary(Unary::Sqrt)
    }

    /// The absolute value of each element; the slope at 0 is 0.
    pub fn abs(&self) -> Self {
        self.unary(Unary::Abs)
    }

    /// `1 / (1 + exp(-x))` for each element.
    pub fn sigmoid(&self) -> Self {
        self.unary(Unary::Sigmoid)
    }

    /// The logarithm of the sigmoid of each element, exact also far below 0.
    #[doc(alias = "logsigmoid")]
    pub fn log_sigmoid(&self) -> Self {
        self.unary(Unary::LogSigmoid)
    }

    /// `log(1 + exp(x))` for each element.
    pub fn softplus(&self) -> Self {
        self.unary(Unary::Softplus)
    }

    /// The hyperbolic tangent of each element.
    pub fn tanh(&self) -> Self {
        self.unary(Unary::Tanh)
    }

    /// Each element, or 0 where it is negative; the slope at 0 is 0.
    pub fn relu(&self) -> Self {
        self.unary(Unary::Relu)
    }

    /// Each element to the power of `exponent`. The slope is 0 where the exponent is 0.
    pub fn pow(&self, exponent: impl Into<Expr>) -> Self {
        self.binary(Binary::Pow, exponent.into())
    }

    /// The smaller of two, element by element; a tie gives each half the gradient.
    #[doc(alias = "minimum")]
    pub fn min(&self, other: impl Into<Expr>) -> Self {
        self.binary(Binary::Min, other.into())
    }

    /// The larger of two, element by element; a tie gives each half the gradient.
    #[doc(alias = "maximum")]
    pub fn max(&self, other: impl Into<Expr>) -> Self {
        self.binary(Binary::Max, other.into())
    }

    /// Each element, moved into `low..=high`. The slope is 1 inside and 0 from the bounds on, as
    /// in PyTorch since 2.14. An infinite bound leaves that side open; where `low > high`,
    /// `high` wins.
    pub fn clamp(&self, low: f64, high: f64) -> Self {
        match self.as_constant() {
            Some(value) => Self::constant(kernel::clamp(value, low, high)),
            None => Self::new(Op::Clamp { low, high }, vec![self.clone()]),
        }
    }

    /// 1 where this is greater than `other`, else 0; no gradient.
    pub fn gt(&self, other: impl Into<Expr>) -> Self {
        self.compare(Compare::Gt, other.into())
    }

    /// 1 where this is at least `other`, else 0; no gradient.
    pub fn ge(&self, other: impl Into<Expr>) -> Self {
        self.compare(Compare::Ge, other.into())
    }

    /// 1 where this is less than `other`, else 0; no gradient.
    pub fn lt(&self, other: impl Into<Expr>) -> Self {
        self.compare(Compare::Lt, other.into())
    }

    /// 1 where this is at most `other`, else 0; no gradient.
    pub fn le(&self, other: impl Into<Expr>) -> Self {
        self.compare(Compare::Le, other.into())
    }

    /// 1 where this equals `other`, else 0; no gradient.
    pub fn eq(&self, other: impl Into<Expr>) -> Self {
        self.compare(Compare::Eq, other.into())
    }

    /// 1 where this differs from `other`, else 0; no gradient.
    pub fn ne(&self, other: impl Into<Expr>) -> Self {
        self.compare(Compare::Ne, other.into())
    }

    /// `yes` where this is not 0, `no` where it is; the gradient goes to the one taken.
    ///
    /// ```
    /// use tinker::loss::{input, logprobs};
    ///
    /// let advantages = input("advantages");
    /// let bound = advantages.gt(0.0).select(1.2, 0.8);
    /// # let _ = (bound, logprobs());
    /// ```
    #[doc(alias = "where")]
    pub fn select(&self, yes: impl Into<Expr>, no: impl Into<Expr>) -> Self {
        Self::new(Op::Select, vec![self.clone(), yes.into(), no.into()])
    }

    /// The sum of all elements: a scalar.
    pub fn sum(&self) -> Self {
        self.reduce(Op::Sum(None))
    }

    /// The mean of all elements: a scalar, NaN if there are none.
    pub fn mean(&self) -> Self {
        self.reduce(Op::Mean(None))
    }

    /// The sum over one axis, which disappears. Negative axes count from the last.
    pub fn sum_axis(&self, axis: i64) -> Self {
        Self::new(Op::Sum(Some(axis)), vec![self.clone()])
    }

    /// The mean over one axis, which disappears. Negative axes count from the last.
    pub fn mean_axis(&self, axis: i64) -> Self {
        Self::new(Op::Mean(Some(axis)), vec![self.clone()])
    }

    /// The same numbers with a new axis of size 1 before `axis`, so that a `[T]` can meet a
    /// `[T, K]`: `weights.unsqueeze(-1) * logprobs`.
    pub fn unsqueeze(&self, axis: i64) -> Self {
        Self::new(Op::Unsqueeze(axis), vec![self.clone()])
    }

    /// The same numbers, constant for the gradient.
    #[doc(alias = "stop_gradient")]
    pub fn detach(&self) -> Self {
        self.reduce(Op::Detach)
    }

    pub(super) fn new(op: Op, args: Vec<Expr>) -> Self {
        Self(Arc::new(Node { op, args }))
    }

    pub(super) fn variable(datum: Option<usize>, tensor: TensorName) -> Self {
        Self::new(Op::Variable(Variable { datum, tensor }), Vec::new())
    }

    pub(super) fn node(&self) -> &Node {
        &self.0
    }

    /// Identifies the node, so that a shared one is computed once.
    pub(super) fn address(&self) -> *const () {
        Arc::as_ptr(&self.0).cast()
    }

    pub(super) fn as_constant(&self) -> Option<f64> {
        match self.0.op {
            Op::Constant(value) => Some(value),
            _ => None,
        }
    }

    pub(super) fn unary(&self, op: Unary) -> Self {
        match self.as_constant() {
            Some(value) => Self::constant(kernel::unary(op, value)),
            None => Self::new(Op::Unary(op), vec![self.clone()]),
        }
    }

    pub(super) fn binary(&self, op: Binary, other: Expr) -> Self {
        match (self.as_constant(), other.as_constant()) {
            (Some(a), Some(b)) => Self::constant(kernel::binary(op, a, b)),
            _ => Self::new(Op::Binary(op), vec![self.clone(), other]),
        }
    }

    pub(super) fn compare(&self, op: Compare, other: Expr) -> Self {
        match (self.as_constant(), other.as_constant()) {
            (Some(a), Some(b)) => Self::constant(kernel::compare(op, a, b)),
            _ => Self::new(Op::Compare(op), vec![self.clone(), other]),
        }
    }

    /// An operation that leaves a constant as it is.
    fn reduce(&self, op: Op) -> Self {
        match self.as_constant() {
            Some(_) => self.clone(),
            None => Self::new(op, vec![self.clone()]),
        }
    }
}

impl From<f64> for Expr {
    fn from(value: f64) -> Self {
        Self::constant(value)
    }
}

impl From<&Expr> for Expr {
    fn from(expr: &Expr) -> Self {
        expr.clone()
    }
}

impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Printing the operands would print shared ones again and again.
        f.debug_tuple("Expr").field(&self.0.op).finish()
    }
}

impl Drop for Node {
    /// Frees long chains (a batch loss added up datum by datum) without recursing.
    fn drop(&mut self) {
        let mut orphans = std::mem::take(&mut self.args);
        while let Some(Expr(node)) = orphans.pop() {
            if let Some(mut node) = Arc::into_inner(node) {
                orphans.append(&mut node.args);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_fold() {
        let three = Expr::constant(1.0) + 2.0;
        assert_eq!(three.as_constant(), Some(3.0));
        assert_eq!((-three.sqrt().pow(0.0)).sum().as_constant(), Some(-1.0));
        assert_eq!(three.gt(1.0).as_constant(), Some(1.0));
        assert_eq!(three.clamp(0.0, 2.0).as_constant(), Some(2.0));
        assert!((logprobs() + 1.0).as_constant().is_none());
    }

    #[test]
    fn long_chains_are_freed_without_recursion() {
        let mut chain = logprobs();
        for _ in 0..200_000 {
            chain = chain + 1.0;
        }
        drop(chain);
    }
}
