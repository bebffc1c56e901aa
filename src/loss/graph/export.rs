//! From a formula to the service's graph.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::super::expr::{Binary, Op, TensorName};
use super::super::objective::Objective;
use super::super::program::Program;
use super::LossGraph;
use super::names::{MAX_INPUTS, metric_key};
use crate::error::{Error, Result};
use crate::types::{CustomLossGraph, CustomLossInput, CustomLossNode, CustomLossOp, Datum, Dtype};

pub(super) fn export(objective: &Objective, data: &[Datum]) -> Result<LossGraph> {
    let metrics = objective.metrics.iter().map(|(_, value)| value);
    let (program, roots) = Program::new(std::iter::once(&objective.loss).chain(metrics));
    let names = input_names(&program)?;
    let inputs = names
        .iter()
        .map(|name| input_of(name, data))
        .collect::<Result<_>>()?;

    let mut writer = Writer::new(&program, &names, data);
    for index in 0..program.steps.len() {
        writer.write_step(index)?;
    }
    let loss = writer.output_ref(roots[0], "loss")?;
    let mut metrics = Map::new();
    for ((name, _), &root) in objective.metrics.iter().zip(&roots[1..]) {
        metrics.insert(metric_key(name)?, writer.output_ref(root, "metric")?);
    }
    let output = json!({"tuple": [loss, {"dict": metrics}]});
    writer.push(CustomLossOp::Output, "output", "output", vec![output]);
    Ok(LossGraph {
        name: objective.name.clone(),
        inputs,
        graph: CustomLossGraph::new(writer.nodes),
    })
}

/// `logprobs`, then the inputs in the order they are first read.
fn input_names(program: &Program) -> Result<Vec<String>> {
    let mut names = vec!["logprobs".to_owned()];
    for variable in program.variables() {
        if variable.datum.is_some() {
            return Err(Error::invalid(
                "loss",
                "names one datum of a batch; only a loss per datum can run on the service",
            ));
        }
        if let TensorName::Input(name) = &variable.tensor {
            if **name == *"logprobs" {
                return Err(Error::invalid(
                    "inputs",
                    "\"logprobs\" is the model's own in a graph; carry yours under another name, \
                     such as \"old_logprobs\"",
                ));
            }
            names.push(name.to_string());
        }
    }
    if names.len() > MAX_INPUTS {
        return Err(Error::invalid(
            "inputs",
            format!(
                "{} is too many; a graph reads at most {MAX_INPUTS}",
                names.len()
            ),
        ));
    }
    Ok(names)
}

/// An input with the rank it has in every datum.
fn input_of(name: &str, data: &[Datum]) -> Result<CustomLossInput> {
    let key = if name == "logprobs" {
        "target_tokens"
    } else {
        name
    };
    let mut found = None;
    for (index, datum) in data.iter().enumerate() {
        let refuse = |problem: String| {
            Error::invalid(format!("data[{index}].loss_fn_inputs.{key}"), problem)
        };
        let tensor = datum
            .input(key)
            .ok_or_else(|| refuse("is missing; the loss reads it".into()))?;
        let rank = tensor.shape().map_or(1, <[usize]>::len);
        match found {
            None => found = Some(rank),
            Some(first) if first == rank => {}
            Some(first) => {
                return Err(refuse(format!(
                    "has rank {rank}, where data[0] has rank {first}"
                )));
            }
        }
    }
    let rank = found.ok_or_else(|| Error::invalid("data", "is empty"))?;
    if name == "logprobs" && rank == 0 {
        return Err(Error::invalid(
            "data",
            "target_tokens must have rank 1 or 2, got a scalar",
        ));
    }
    CustomLossInput::new(name, u8::try_from(rank).unwrap_or(u8::MAX))
        .map_err(|error| error.within(&format!("inputs.{name}")))
}

struct Writer<'a> {
    program: &'a Program,
    data: &'a [Datum],
    nodes: Vec<CustomLossNode>,
    taken: HashSet<String>,
    /// The node holding each step's numbers; `None` for constants, which are written in place.
    refs: Vec<Option<Value>>,
    /// The boolean node behind each comparison.
    masks: Vec<Option<Value>>,
}

impl<'a> Writer<'a> {
    fn new(program: &'a Program, inputs: &[String], data: &'a [Datum]) -> Self {
        let mut writer = Self {
            program,
            data,
            nodes: Vec::new(),
            taken: HashSet::new(),
            refs: Vec::new(),
            masks: Vec::new(),
        };
        for name in inputs {
            writer.push(CustomLossOp::Placeholder, name, name, Vec::new());
        }
        writer
    }

    /// Adds a node under a free name and returns a reference to it.
    fn push(&mut self, op: CustomLossOp, stem: &str, target: &str, args: Vec<Value>) -> Value {
        let name = (0..)
            .map(|n| match n {
                0 => stem.to_owned(),
                n => format!("{stem}_{n}"),
            })
            .find(|name| !self.taken.contains(name))
            .expect("some number is free");
        self.taken.insert(name.clone());
        let reference = json!({"ref": name});
        self.nodes.push(CustomLossNode {
            op,
            name,
            target: target.to_owned(),
            args,
            kwargs: Map::new(),
        });
        reference
    }

    fn call(&mut self, target: &str, args: Vec<Value>) -> Value {
        let stem = target.rsplit('.').next().unwrap_or(target);
        self.push(CustomLossOp::CallFunction, stem, target, args)
    }

    fn call_method(&mut self, target: &str, args: Vec<Value>) -> Value {
        self.push(CustomLossOp::CallMethod, target, target, args)
    }

    fn write_step(&mut self, index: usize) -> Result<()> {
        let program = self.program;
        let step = &program.steps[index];
        let args: Vec<Value> = step.args.iter().map(|&arg| self.argument(arg)).collect();
        let mut mask = None;
        let reference = match &step.op {
            Op::Constant(_) => None,
            Op::Variable(variable) => Some(match &variable.tensor {
                TensorName::Logprobs => json!({"ref": "logprobs"}),
                TensorName::Input(name) => self.input(name),
            }),
            Op::Unary(op) => Some(self.call(op.target(), args)),
            Op::Binary(op @ (Binary::Min | Binary::Max)) => {
                let args = self.full_tensors(&step.args, args);
                Some(self.call(op.target(), args))
            }
            Op::Binary(op) => Some(self.call(op.target(), args)),
            Op::Compare(op) => {
                let truth = self.call(op.target(), args);
                mask = Some(truth.clone());
                Some(self.call_method("float", vec![truth]))
            }
            Op::Clamp { low, high } => {
                let bounds = [args[0].clone(), number(*low), number(*high)];
                Some(self.call("torch.clamp", bounds.into()))
            }
            Op::Select => {
                let condition = self.condition(step.args[0], &args[0])?;
                let args = vec![condition, args[1].clone(), args[2].clone()];
                Some(self.call("torch.where", args))
            }
            Op::Sum(axis) => Some(self.method("sum", step.args[0], *axis)?),
            Op::Mean(axis) => Some(self.method("mean", step.args[0], *axis)?),
            Op::Unsqueeze(axis) => Some(self.method("unsqueeze", step.args[0], Some(*axis))?),
            Op::Detach => Some(self.method("detach", step.args[0], None)?),
        };
        self.refs.push(reference);
        self.masks.push(mask);
        Ok(())
    }

    /// An input as floats, which is how formulas read it; PyTorch would not average integers.
    fn input(&mut self, name: &str) -> Value {
        let reference = json!({"ref": name});
        let is_integer =
            |datum: &Datum| datum.input(name).is_some_and(|t| t.dtype() == Dtype::Int64);
        match self.data.iter().any(is_integer) {
            true => self.call_method("float", vec![reference]),
            false => reference,
        }
    }

    /// A method of the tensor in `step`, with an axis if it takes one.
    fn method(&mut self, target: &str, step: usize, axis: Option<i64>) -> Result<Value> {
        let mut args = vec![self.tensor(step)?.clone()];
        args.extend(axis.map(|axis| json!(axis)));
        Ok(self.call_method(target, args))
    }

    /// A reference, or a constant as itself.
    fn argument(&self, step: usize) -> Value {
        match (&self.refs[step], &self.program.steps[step].op) {
            (Some(reference), _) => reference.clone(),
            (None, Op::Constant(value)) => number(*value),
            (None, _) => unreachable!("only constants are written in place"),
        }
    }

    /// The boolean PyTorch wants where a formula has any number.
    fn condition(&mut self, step: usize, argument: &Value) -> Result<Value> {
        if let Some(mask) = &self.masks[step] {
            return Ok(mask.clone());
        }
        self.tensor(step)?;
        Ok(self.call("operator.ne", vec![argument.clone(), number(0.0)]))
    }

    /// PyTorch's minimum and maximum take no plain numbers: fills a tensor with them.
    fn full_tensors(&mut self, steps: &[usize], args: Vec<Value>) -> Vec<Value> {
        let like = steps.iter().find_map(|&step| self.refs[step].clone());
        let Some(like) = like else { return args };
        let mut full = Vec::with_capacity(args.len());
        for (&step, arg) in steps.iter().zip(args) {
            full.push(match self.refs[step] {
                Some(_) => arg,
                None => {
                    let filled = self.call("torch.full_like", vec![like.clone(), arg]);
                    // Integers would otherwise lose the constant's fraction.
                    if let Some(node) = self.nodes.last_mut() {
                        node.kwargs
                            .insert("dtype".into(), json!({"dtype": "float32"}));
                    }
                    filled
                }
            });
        }
        full
    }

    fn tensor(&self, step: usize) -> Result<&Value> {
        self.refs[step].as_ref().ok_or_else(|| {
            Error::invalid("loss", "uses a constant where the service needs a tensor")
        })
    }

    fn output_ref(&self, step: usize, field: &str) -> Result<Value> {
        self.refs[step].clone().ok_or_else(|| {
            Error::invalid(
                field,
                "is a constant; the service needs a value computed from the data",
            )
        })
    }
}

/// A number, in the spelling the service has for those JSON lacks.
fn number(value: f64) -> Value {
    if value.is_finite() {
        json!(value)
    } else if value.is_nan() {
        json!({"float": "nan"})
    } else if value > 0.0 {
        json!({"float": "inf"})
    } else {
        json!({"float": "-inf"})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::{Expr, input, logprobs};

    fn data() -> Vec<Datum> {
        vec![
            Datum::new(vec![0])
                .with_target_tokens(vec![1i64, 2])
                .with("logprobs", vec![0.0f32, 0.0])
                .with("Upper", vec![0.0f32, 0.0])
                .with("ids", vec![1i64, 2]),
        ]
    }

    #[test]
    fn what_cannot_be_exported_says_why() {
        #[track_caller]
        fn check(loss: impl Into<Objective>, data: &[Datum], expected: &str) {
            let error = loss.into().to_graph(data).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let x = logprobs;
        let loss = || x().sum();
        check(Expr::constant(1.0), &data(), "invalid loss: is a constant");
        check(
            loss().with_metric("k:sum", 1.0),
            &data(),
            "invalid metric: is a constant",
        );
        check(
            loss().with_metric("k", x().sum()),
            &data(),
            "must be up to 64",
        );
        check((x() * input("logprobs")).sum(), &data(), "old_logprobs");
        check((x() * input("Upper")).sum(), &data(), "must match");
        check(
            (x() * input("absent")).sum(),
            &data(),
            "data[0].loss_fn_inputs.absent: is missing",
        );
        check(
            Expr::constant(1.0).select(x(), 0.0).sum(),
            &data(),
            "uses a constant",
        );
        check(loss(), &[], "is empty");
        let mut mixed = data();
        let matrix = crate::types::TensorData::from_rows(&[vec![1i64]]).unwrap();
        mixed.push(Datum::new(vec![0]).with_target_tokens(matrix));
        check(loss(), &mixed, "has rank 2, where data[0] has rank 1");
        let many = (0..16).map(|n| input(&format!("x{n}"))).sum::<Expr>();
        check((x() * many).sum(), &data(), "a graph reads at most 16");
    }

    #[test]
    fn integers_are_read_as_floats() {
        let loss = Objective::new(logprobs().sum() * input("ids").mean());
        let graph = loss.to_graph(&data()).unwrap();
        let targets: Vec<&str> = graph
            .graph
            .nodes()
            .iter()
            .map(|node| node.target.as_str())
            .collect();
        assert_eq!(
            targets,
            [
                "logprobs",
                "ids",
                "sum",
                "float",
                "mean",
                "operator.mul",
                "output"
            ]
        );
    }
}
