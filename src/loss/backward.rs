//! Reverse mode: from the loss back to each datum's logprobs.

use super::array::{Array, Source, split_axis};
use super::expr::{Op, Variable};
use super::kernel;
use super::program::{Program, Step};
use crate::error::Result;

impl Program {
    /// The gradient of the scalar `root` for every logprobs variable it depends on.
    pub(super) fn backward(
        &self,
        values: &[Array],
        root: usize,
    ) -> Result<Vec<(&Variable, Vec<f64>)>> {
        let mut gradients: Vec<Option<Vec<f64>>> = vec![None; root + 1];
        if self.steps[root].needs_gradient {
            gradients[root] = Some(vec![1.0; values[root].data.len()]);
        }
        let mut leaves = Vec::new();
        for (index, step) in self.steps[..=root].iter().enumerate().rev() {
            let Some(gradient) = gradients[index].take() else {
                continue;
            };
            if let Op::Variable(variable) = &step.op {
                leaves.push((variable, gradient));
                continue;
            }
            // What a condition selects does not change with its value.
            let first = usize::from(step.op == Op::Select);
            for (position, &arg) in step.args.iter().enumerate().skip(first) {
                if self.steps[arg].needs_gradient {
                    let into =
                        gradients[arg].get_or_insert_with(|| vec![0.0; values[arg].data.len()]);
                    accumulate(step, position, values, &values[index], &gradient, into)?;
                }
            }
        }
        leaves.reverse();
        Ok(leaves)
    }
}

/// Adds to `into` what operand `position` of `step` gets from the `gradient` of its result.
fn accumulate(
    step: &Step,
    position: usize,
    values: &[Array],
    result: &Array,
    gradient: &[f64],
    into: &mut [f64],
) -> Result<()> {
    let arg = |position: usize| &values[step.args[position]];
    let x = arg(position);
    match &step.op {
        Op::Constant(_) | Op::Variable(_) | Op::Compare(_) | Op::Detach => {}
        Op::Unary(op) => {
            for (i, slot) in into.iter_mut().enumerate() {
                *slot += kernel::unary_gradient(*op, x.data[i], result.data[i], gradient[i]);
            }
        }
        Op::Clamp { low, high } => {
            for (i, slot) in into.iter_mut().enumerate() {
                if x.data[i] > *low && x.data[i] < *high {
                    *slot += gradient[i];
                }
            }
        }
        Op::Binary(op) => {
            let (a, b) = (arg(0), arg(1));
            let sources = [
                Source::new(&a.shape, &result.shape),
                Source::new(&b.shape, &result.shape),
            ];
            for (i, &g) in gradient.iter().enumerate() {
                let (left, right) = (a.data[sources[0].at(i)], b.data[sources[1].at(i)]);
                into[sources[position].at(i)] += if position == 0 {
                    kernel::left_gradient(*op, left, right, g)
                } else {
                    kernel::right_gradient(*op, left, right, result.data[i], g)
                };
            }
        }
        Op::Select => {
            let condition = Source::new(&arg(0).shape, &result.shape);
            let source = Source::new(&x.shape, &result.shape);
            for (i, &g) in gradient.iter().enumerate() {
                if (arg(0).data[condition.at(i)] != 0.0) == (position == 1) {
                    into[source.at(i)] += g;
                }
            }
        }
        Op::Sum(None) => into.iter_mut().for_each(|slot| *slot += gradient[0]),
        Op::Mean(None) => {
            let share = gradient[0] / into.len() as f64;
            into.iter_mut().for_each(|slot| *slot += share);
        }
        Op::Sum(Some(axis)) => spread(&x.shape, *axis, gradient, into, |_| 1.0)?,
        Op::Mean(Some(axis)) => spread(&x.shape, *axis, gradient, into, |n| 1.0 / n as f64)?,
        Op::Unsqueeze(_) => {
            for (slot, g) in into.iter_mut().zip(gradient) {
                *slot += g;
            }
        }
    }
    Ok(())
}

/// Gives every element along `axis` the gradient of its sum, times a factor of the axis' size.
fn spread(
    shape: &[usize],
    axis: i64,
    gradient: &[f64],
    into: &mut [f64],
    factor: impl Fn(usize) -> f64,
) -> Result<()> {
    let (outer, size, inner) = split_axis(shape, axis)?;
    let factor = factor(size);
    for o in 0..outer {
        for k in 0..size {
            for i in 0..inner {
                into[(o * size + k) * inner + i] += gradient[o * inner + i] * factor;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::expr::TensorName;
    use crate::loss::{Expr, input, logprobs};

    const X: [f64; 6] = [-1.7, -0.6, -0.2, 0.3, 0.9, 2.1];
    const A: [f64; 3] = [0.5, -1.25, 2.0];

    fn gradient(expr: &Expr, x: &[f64], shape: &[usize]) -> (f64, Vec<f64>) {
        let (program, roots) = Program::new([expr]);
        let bind = |variable: &Variable| {
            Ok(match variable.tensor {
                TensorName::Logprobs => Array::new(shape.to_vec(), x.to_vec()),
                TensorName::Input(_) => Array::new(vec![3], A.to_vec()),
            })
        };
        let values = program.forward(bind, usize::MAX).unwrap();
        let gradients = program.backward(&values, roots[0]).unwrap();
        let gradient = match gradients.as_slice() {
            [] => vec![0.0; x.len()],
            [(_, gradient)] => gradient.clone(),
            _ => panic!("one variable"),
        };
        (values[roots[0]].item().unwrap(), gradient)
    }

    /// Compares with central differences of the weighted sum of `f(x)`.
    #[track_caller]
    fn check_at(x: &[f64], shape: &[usize], f: impl Fn(Expr) -> Expr) {
        let expr = f(logprobs()).sum();
        let (_, exact) = gradient(&expr, x, shape);
        for i in 0..x.len() {
            let step = 1e-6;
            let shifted = |by: f64| {
                let mut x = x.to_vec();
                x[i] += by;
                gradient(&expr, &x, shape).0
            };
            let numeric = (shifted(step) - shifted(-step)) / (2.0 * step);
            let tolerance = 1e-6 * (1.0 + numeric.abs());
            assert!(
                (exact[i] - numeric).abs() < tolerance,
                "element {i}: {} is not {numeric}",
                exact[i]
            );
        }
    }

    #[track_caller]
    fn check(f: impl Fn(Expr) -> Expr) {
        check_at(&X, &[2, 3], f);
    }

    #[test]
    fn every_operation_agrees_with_finite_differences() {
        let a = || input("a");
        check(|x| -x);
        check(|x| x.exp());
        check(|x| (x.pow(2.0) + 0.5).log());
        check(|x| (x.pow(2.0) + 0.5).sqrt());
        check(|x| x.abs());
        check(|x| x.sigmoid());
        check(|x| x.log_sigmoid());
        check(|x| x.softplus());
        check(|x| x.tanh());
        check(|x| x.relu());
        check(|x| x + a());
        check(|x| a() + x);
        check(|x| x - a());
        check(|x| a() - x);
        check(|x| x * a());
        check(|x| a() * x);
        check(|x| x / a());
        check(|x| a() / x);
        check(|x| &x * &x);
        check(|x| x.pow(3.0));
        check(|x| (x.pow(2.0) + 0.1).pow(a()));
        check(|x| Expr::constant(2.5).pow(x));
        check(|x| x.exp().pow(&x));
        check(|x| x.min(a()));
        check(|x| x.max(a()));
        check(|x| a().min(x));
        check(|x| x.clamp(-0.5, 1.0));
        check(|x| x.clamp(f64::NEG_INFINITY, 1.0));
        check(|x| x.gt(0.0).select(x.exp(), &x * 3.0));
        check(|x| a().gt(0.0).select(&x, x.pow(2.0)));
        check(|x| x.ge(a()) * &x + x.lt(0.1) + x.le(0.1) + x.eq(0.1) + x.ne(0.1));
        check(|x| x.pow(2.0).sum());
        check(|x| x.pow(2.0).mean());
        check(|x| x.exp().sum_axis(0) * a());
        check(|x| x.exp().sum_axis(1).log());
        check(|x| x.exp().mean_axis(-1).log());
        check(|x| x.exp().mean_axis(0) * a());
        check(|x| x.exp().sum_axis(1).unsqueeze(-1) * a());
        check(|x| &x - x.exp().sum_axis(-1).log().unsqueeze(-1));
        check(|x| x.mean() * &x);
    }

    #[test]
    fn rank_one_and_broadcast_operands() {
        let a = || input("a");
        check_at(&[0.2, 0.4, 0.9], &[3], |x| x * a());
        check_at(&[0.7], &[1], |x| x.exp() * a());
        check_at(&[0.7], &[1, 1], |x| a() / x);
        check_at(&[0.7, 0.1], &[2, 1], |x| x.pow(2.0) * a());
        check_at(&[], &[0], |x| x.exp());
    }

    #[test]
    fn ties_follow_pytorch() {
        #[track_caller]
        fn check(f: impl Fn(Expr) -> Expr, x: f64, expected: f64) {
            let (_, gradient) = gradient(&f(logprobs()).sum(), &[x], &[1]);
            assert_eq!(gradient, [expected]);
        }
        check(|x| x.max(1.0), 1.0, 0.5);
        check(|x| x.min(1.0), 1.0, 0.5);
        check(|x| Expr::constant(1.0).min(x), 1.0, 0.5);
        check(|x| x.max(&x), 1.0, 1.0);
        check(|x| x.clamp(1.0, 2.0), 1.0, 0.0);
        check(|x| x.clamp(1.0, 2.0), 1.5, 1.0);
        check(|x| x.clamp(1.0, 2.0), 2.0, 0.0);
        check(|x| x.abs(), 0.0, 0.0);
        check(|x| x.relu(), 0.0, 0.0);
        check(|x| x.pow(0.0), 0.0, 0.0);
        check(|x| x.pow(1.0), 0.0, 1.0);
        check(|x| x.sqrt(), 0.0, f64::INFINITY);
        check(|x| Expr::constant(0.0).pow(x), 2.0, 0.0);
        check(|x| Expr::constant(0.0).pow(x), 0.0, 0.0);
        check(|x| Expr::constant(2.0).pow(x), 0.0, 2f64.ln());
    }

    #[test]
    fn detached_and_compared_values_are_constant() {
        let x = logprobs();
        let (_, detached) = gradient(&(x.detach() * &x).sum(), &[3.0], &[1]);
        assert_eq!(detached, [3.0]);
        let (_, condition) = gradient(&(&x / &x).select(&x, 0.0).sum(), &[0.0, 2.0], &[2]);
        assert_eq!(condition, [1.0, 1.0], "0 / 0 is NaN, which is not 0");
        let (_, masked) = gradient(&(x.gt(1.0) * &x).sum(), &[3.0], &[1]);
        assert_eq!(masked, [1.0]);
    }

    #[test]
    fn a_branch_not_taken_still_spoils_the_gradient() {
        // As in PyTorch: the branch gets a gradient of 0, and 0 times NaN is NaN.
        let x = logprobs();
        let root = x.gt(0.0).select(x.sqrt(), 0.0);
        let (value, gradient) = gradient(&root.sum(), &[-1.0, 4.0], &[2]);
        assert_eq!(value, 2.0);
        assert!(gradient[0].is_nan());
        assert_eq!(gradient[1], 0.25);
    }
}
