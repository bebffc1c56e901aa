//! An expression laid out in execution order, and its forward pass.

use std::collections::HashMap;

use super::array::{Array, Source, broadcast, resolve_axis, split_axis};
use super::expr::{Expr, Op, TensorName, Variable};
use super::kernel;
use crate::error::{Error, Result};

/// More axes than any loss needs; keeps a hostile graph's shapes small.
const MAX_RANK: usize = 4;

/// The operations behind some expressions, each once, operands first.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) steps: Vec<Step>,
}

#[derive(Debug)]
pub(super) struct Step {
    pub(super) op: Op,
    /// Indices of earlier steps.
    pub(super) args: Vec<usize>,
    /// Whether the value depends on logprobs in a way that has a gradient.
    pub(super) needs_gradient: bool,
}

impl Program {
    /// Lays out everything `roots` depend on; also returns the roots' steps.
    pub(super) fn new<'a>(roots: impl IntoIterator<Item = &'a Expr>) -> (Self, Vec<usize>) {
        let mut layout = Layout::default();
        let roots = roots.into_iter().map(|root| layout.visit(root)).collect();
        let steps = layout.steps;
        (Self { steps }, roots)
    }

    /// The variables, in the order they are first needed.
    pub(super) fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.steps.iter().filter_map(|step| match &step.op {
            Op::Variable(variable) => Some(variable),
            _ => None,
        })
    }

    /// The value of every step. `budget` bounds how many numbers that may be.
    pub(super) fn forward(
        &self,
        mut bind: impl FnMut(&Variable) -> Result<Array>,
        mut budget: usize,
    ) -> Result<Vec<Array>> {
        let mut values: Vec<Array> = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let value = match &step.op {
                Op::Variable(variable) => bind(variable)?,
                op => {
                    let args: Vec<&Array> = step.args.iter().map(|&arg| &values[arg]).collect();
                    let shape = result_shape(op, &args)?;
                    let size = shape
                        .iter()
                        .try_fold(1_usize, |size, &axis| size.checked_mul(axis))
                        .filter(|&size| size <= budget)
                        .ok_or_else(|| {
                            Error::invalid("loss", "needs more memory than a loss may use")
                        })?;
                    budget -= size;
                    compute(op, &args, shape)?
                }
            };
            values.push(value);
        }
        Ok(values)
    }
}

#[derive(Default)]
struct Layout {
    steps: Vec<Step>,
    by_address: HashMap<*const (), usize>,
    by_variable: HashMap<Variable, usize>,
}

impl Layout {
    /// Places `root` after its operands. A loop, because a batch's formula can be deep.
    fn visit(&mut self, root: &Expr) -> usize {
        let mut pending = vec![(root, false)];
        while let Some((expr, operands_placed)) = pending.pop() {
            if self.by_address.contains_key(&expr.address()) {
                continue;
            }
            if operands_placed {
                self.place(expr);
            } else {
                pending.push((expr, true));
                pending.extend(expr.node().args.iter().rev().map(|arg| (arg, false)));
            }
        }
        self.by_address[&root.address()]
    }

    fn place(&mut self, expr: &Expr) {
        let node = expr.node();
        let index = match &node.op {
            Op::Variable(variable) => match self.by_variable.get(variable) {
                Some(&index) => index,
                None => {
                    self.by_variable.insert(variable.clone(), self.steps.len());
                    self.push(expr)
                }
            },
            _ => self.push(expr),
        };
        self.by_address.insert(expr.address(), index);
    }

    fn push(&mut self, expr: &Expr) -> usize {
        let node = expr.node();
        let args: Vec<usize> = node
            .args
            .iter()
            .map(|arg| self.by_address[&arg.address()])
            .collect();
        let needs_gradient = match &node.op {
            Op::Variable(variable) => variable.tensor == TensorName::Logprobs,
            Op::Constant(_) | Op::Compare(_) | Op::Detach => false,
            Op::Select => args[1..].iter().any(|&arg| self.steps[arg].needs_gradient),
            _ => args.iter().any(|&arg| self.steps[arg].needs_gradient),
        };
        self.steps.push(Step {
            op: node.op.clone(),
            args,
            needs_gradient,
        });
        self.steps.len() - 1
    }
}

fn result_shape(op: &Op, args: &[&Array]) -> Result<Vec<usize>> {
    let shape = |arg: usize| args[arg].shape.as_slice();
    match op {
        Op::Constant(_) | Op::Variable(_) | Op::Sum(None) | Op::Mean(None) => Ok(Vec::new()),
        Op::Unary(_) | Op::Clamp { .. } | Op::Detach => Ok(shape(0).to_vec()),
        Op::Binary(_) | Op::Compare(_) => broadcast(shape(0), shape(1)),
        Op::Select => broadcast(&broadcast(shape(0), shape(1))?, shape(2)),
        Op::Sum(Some(axis)) | Op::Mean(Some(axis)) => {
            split_axis(shape(0), *axis)?;
            let mut shape = shape(0).to_vec();
            if let Some(axis) = resolve_axis(shape.len(), *axis).filter(|&a| a < shape.len()) {
                shape.remove(axis);
            }
            Ok(shape)
        }
        Op::Unsqueeze(axis) => {
            let mut shape = shape(0).to_vec();
            // The new axis counts too: -1 puts it last.
            let axis = resolve_axis(shape.len() + 1, *axis)
                .filter(|&axis| axis <= shape.len() && shape.len() < MAX_RANK)
                .ok_or_else(|| {
                    Error::invalid("loss", format!("cannot add axis {axis} to shape {shape:?}"))
                })?;
            shape.insert(axis, 1);
            Ok(shape)
        }
    }
}

fn compute(op: &Op, args: &[&Array], shape: Vec<usize>) -> Result<Array> {
    Ok(match op {
        Op::Constant(value) => Array::scalar(*value),
        Op::Variable(_) => unreachable!("variables are bound, not computed"),
        Op::Unary(op) => args[0].map(|x| kernel::unary(*op, x)),
        Op::Clamp { low, high } => args[0].map(|x| kernel::clamp(x, *low, *high)),
        Op::Binary(op) => zip(args, shape, |a, b| kernel::binary(*op, a, b)),
        Op::Compare(op) => zip(args, shape, |a, b| kernel::compare(*op, a, b)),
        Op::Select => select(args, shape),
        Op::Sum(None) => Array::scalar(args[0].data.iter().sum()),
        Op::Mean(None) => {
            Array::scalar(args[0].data.iter().sum::<f64>() / args[0].data.len() as f64)
        }
        Op::Sum(Some(axis)) => sum_axis(args[0], *axis, shape)?,
        Op::Mean(Some(axis)) => {
            let (_, size, _) = split_axis(&args[0].shape, *axis)?;
            sum_axis(args[0], *axis, shape)?.map(|sum| sum / size as f64)
        }
        Op::Unsqueeze(_) | Op::Detach => Array::new(shape, args[0].data.clone()),
    })
}

fn zip(args: &[&Array], shape: Vec<usize>, f: impl Fn(f64, f64) -> f64) -> Array {
    let (a, b) = (args[0], args[1]);
    let (from_a, from_b) = (Source::new(&a.shape, &shape), Source::new(&b.shape, &shape));
    let size = shape.iter().product();
    let data = (0..size)
        .map(|i| f(a.data[from_a.at(i)], b.data[from_b.at(i)]))
        .collect();
    Array::new(shape, data)
}

fn select(args: &[&Array], shape: Vec<usize>) -> Array {
    let sources: Vec<Source> = args
        .iter()
        .map(|arg| Source::new(&arg.shape, &shape))
        .collect();
    let size = shape.iter().product();
    let data = (0..size)
        .map(|i| {
            let taken = if args[0].data[sources[0].at(i)] != 0.0 {
                1
            } else {
                2
            };
            args[taken].data[sources[taken].at(i)]
        })
        .collect();
    Array::new(shape, data)
}

fn sum_axis(array: &Array, axis: i64, shape: Vec<usize>) -> Result<Array> {
    let (outer, size, inner) = split_axis(&array.shape, axis)?;
    let mut data = vec![0.0; outer * inner];
    for o in 0..outer {
        for k in 0..size {
            for i in 0..inner {
                data[o * inner + i] += array.data[(o * size + k) * inner + i];
            }
        }
    }
    Ok(Array::new(shape, data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{input, logprobs};

    /// Evaluates with logprobs `[[1,2,3],[4,5,6]]` and input `[10,20,30]`.
    #[track_caller]
    fn check(expr: Expr, shape: &[usize], expected: &[f64]) {
        let (program, roots) = Program::new([&expr]);
        let bind = |variable: &Variable| {
            Ok(match variable.tensor {
                TensorName::Logprobs => Array::new(vec![2, 3], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
                TensorName::Input(_) => Array::new(vec![3], vec![10.0, 20.0, 30.0]),
            })
        };
        let values = program.forward(bind, usize::MAX).unwrap();
        let value = &values[roots[0]];
        assert_eq!(
            (value.shape.as_slice(), value.data.as_slice()),
            (shape, expected)
        );
    }

    #[test]
    fn shapes_and_reductions() {
        check(logprobs().sum(), &[], &[21.0]);
        check(logprobs().mean(), &[], &[3.5]);
        check(logprobs().sum_axis(0), &[3], &[5.0, 7.0, 9.0]);
        check(logprobs().sum_axis(-1), &[2], &[6.0, 15.0]);
        check(logprobs().mean_axis(1), &[2], &[2.0, 5.0]);
        check(logprobs().sum().sum_axis(-1), &[], &[21.0]);
        check(
            logprobs() + input("a"),
            &[2, 3],
            &[11.0, 22.0, 33.0, 14.0, 25.0, 36.0],
        );
        check(
            logprobs().sum_axis(1).unsqueeze(-1) + input("a"),
            &[2, 3],
            &[16.0, 26.0, 36.0, 25.0, 35.0, 45.0],
        );
        check(
            input("a").gt(15.0).select(logprobs(), 0.0),
            &[2, 3],
            &[0.0, 2.0, 3.0, 0.0, 5.0, 6.0],
        );
    }

    #[test]
    fn shared_parts_are_placed_once() {
        let shared = logprobs().exp();
        let (program, _) = Program::new([&(&shared * &shared + logprobs()).sum()]);
        assert_eq!(program.steps.len(), 5, "logprobs, exp, mul, add, sum");
    }

    #[test]
    fn the_budget_bounds_memory() {
        let (program, _) = Program::new([&(logprobs() + 1.0).sum()]);
        let bind = |_: &Variable| Ok(Array::new(vec![100], vec![0.0; 100]));
        assert!(program.forward(bind, 102).is_ok());
        assert!(program.forward(bind, 101).is_err());
    }
}
