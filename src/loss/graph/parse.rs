//! From the service's graph to a formula.

use std::collections::HashMap;

use serde_json::Value;

use super::super::expr::{Binary, Compare, Expr, TensorName, Unary};
use super::super::objective::Objective;
use super::LossGraph;
use super::call::Call;
use super::names::{MAX_INPUTS, metric_key};
use crate::error::{Error, Result};
use crate::types::{CustomLossInput, CustomLossNode, CustomLossOp};

/// How many operations a graph may have.
const MAX_NODES: usize = 4096;

/// How many numbers one evaluation may hold: half a gigabyte.
const BUDGET: usize = 1 << 26;

/// A tensor of the graph. Comparisons give booleans, which PyTorch treats apart.
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    pub(super) expr: Expr,
    pub(super) is_mask: bool,
}

pub(super) type Tensors = HashMap<String, Tensor>;

pub(super) fn parse(graph: &LossGraph) -> Result<Objective> {
    check_inputs(&graph.inputs)?;
    let nodes = graph.graph.nodes();
    if nodes.len() > MAX_NODES {
        return Err(Error::invalid(
            "graph.nodes",
            format!("{} is too many; at most {MAX_NODES}", nodes.len()),
        ));
    }
    let Some((output, nodes)) = nodes.split_last() else {
        return Err(Error::invalid("graph.nodes", "is empty"));
    };
    let mut inputs = graph.inputs.iter();
    let mut tensors = Tensors::new();
    for (index, node) in nodes.iter().enumerate() {
        let within = |error: Error| error.within(&format!("graph.nodes[{index}]"));
        let tensor = read_node(node, &mut inputs, &tensors).map_err(within)?;
        if tensors.insert(node.name.clone(), tensor).is_some() {
            return Err(within(Error::invalid(
                "name",
                format!("{:?} is taken", node.name),
            )));
        }
    }
    if let Some(input) = inputs.next() {
        return Err(Error::invalid(
            "graph.nodes",
            format!("has no placeholder for the input {:?}", input.name()),
        ));
    }
    let (loss, metrics) = read_output(output, &tensors)
        .map_err(|error| error.within(&format!("graph.nodes[{}]", nodes.len())))?;
    Ok(Objective {
        name: graph.name.clone(),
        loss,
        metrics,
        inputs: Some(graph.inputs.clone()),
        budget: BUDGET,
    })
}

fn check_inputs(inputs: &[CustomLossInput]) -> Result<()> {
    let refuse = |problem: String| Err(Error::invalid("inputs", problem));
    if inputs.len() > MAX_INPUTS {
        return refuse(format!(
            "{} is too many; at most {MAX_INPUTS}",
            inputs.len()
        ));
    }
    match inputs.first() {
        Some(first) if first.name() == "logprobs" && matches!(first.rank(), 1 | 2) => {}
        _ => return refuse("must start with logprobs, of rank 1 or 2".into()),
    }
    for (index, input) in inputs.iter().enumerate() {
        if inputs[..index]
            .iter()
            .any(|other| other.name() == input.name())
        {
            return refuse(format!("{:?} appears twice", input.name()));
        }
    }
    Ok(())
}

fn read_node<'a>(
    node: &CustomLossNode,
    inputs: &mut impl Iterator<Item = &'a CustomLossInput>,
    tensors: &Tensors,
) -> Result<Tensor> {
    match node.op {
        CustomLossOp::Placeholder => match inputs.next() {
            Some(input) if input.name() == node.target => Ok(placeholder(input.name())),
            _ => Err(Error::invalid(
                "target",
                format!("{:?} is not the next of the declared inputs", node.target),
            )),
        },
        CustomLossOp::CallFunction => {
            let name = function_name(&node.target).ok_or_else(|| unknown(node))?;
            call(name, node, tensors)
        }
        CustomLossOp::CallMethod => call(&node.target, node, tensors),
        _ => Err(Error::invalid(
            "op",
            "must be placeholder, call_function or call_method, and output for the last node",
        )),
    }
}

fn placeholder(name: &str) -> Tensor {
    let tensor = match name {
        "logprobs" => TensorName::Logprobs,
        name => TensorName::Input(name.into()),
    };
    Tensor {
        expr: Expr::variable(None, tensor),
        is_mask: false,
    }
}

/// The bare name of a function of a module whose functions are understood.
fn function_name(target: &str) -> Option<&str> {
    const MODULES: [&str; 5] = [
        "operator",
        "torch",
        "torch.nn.functional",
        "torch._C._nn",
        "torch.special",
    ];
    let (module, name) = target.rsplit_once('.')?;
    MODULES.contains(&module).then_some(name)
}

fn unknown(node: &CustomLossNode) -> Error {
    Error::invalid(
        "target",
        format!(
            "{:?} is not understood here; a loss may use arithmetic, comparisons, exp, log, sqrt, \
             square, abs, pow, sigmoid, log_sigmoid, softplus, tanh, relu, clamp, minimum, maximum, \
             where, sum, mean, unsqueeze, detach, float, full_like, zeros_like and ones_like",
            node.target
        ),
    )
}

/// One function or method call, by its bare name.
fn call(name: &str, node: &CustomLossNode, tensors: &Tensors) -> Result<Tensor> {
    let mut call = Call::new(node, tensors);
    let tensor = if let Some(op) = Unary::parse(name) {
        unary(op, &mut call)?
    } else if let Some(op) = Binary::parse(name) {
        binary(op, &mut call)?
    } else if let Some(op) = Compare::parse(name) {
        let (left, right) = (call.operand("input")?, call.operand("other")?);
        mask(left.expr.compare(op, right.expr))
    } else {
        special(name, &mut call)?.ok_or_else(|| unknown(node))?
    };
    call.finish()?;
    Ok(tensor)
}

fn unary(op: Unary, call: &mut Call<'_>) -> Result<Tensor> {
    let x = call.operand("input")?;
    match op {
        Unary::Neg => Ok(number(x.number("negated")?.unary(op))),
        Unary::Relu => {
            call.flag("inplace")?;
            Ok(number(x.expr.unary(op)))
        }
        _ => Ok(number(x.expr.unary(op))),
    }
}

fn binary(op: Binary, call: &mut Call<'_>) -> Result<Tensor> {
    let right_name = if op == Binary::Pow {
        "exponent"
    } else {
        "other"
    };
    let (left, right) = (call.operand("input")?, call.operand(right_name)?);
    let both_masks = left.is_mask && right.is_mask;
    match op {
        // True plus true is true.
        Binary::Add if both_masks => Ok(mask(left.expr.max(right.expr))),
        Binary::Sub => {
            let (left, right) = (left.number("subtracted")?, right.number("subtracted")?);
            Ok(number(left.binary(op, right)))
        }
        Binary::Mul | Binary::Min | Binary::Max => Ok(Tensor {
            expr: left.expr.binary(op, right.expr),
            is_mask: both_masks,
        }),
        _ => Ok(number(left.expr.binary(op, right.expr))),
    }
}

/// What is neither unary, binary nor a comparison; `None` if the name is unknown.
fn special(name: &str, call: &mut Call<'_>) -> Result<Option<Tensor>> {
    let x = call.operand(if name == "where" {
        "condition"
    } else {
        "input"
    })?;
    Ok(Some(match name {
        "square" => number(x.expr.pow(2.0)),
        "clamp" | "clip" => {
            let low = call.number("min")?.unwrap_or(f64::NEG_INFINITY);
            let high = call.number("max")?.unwrap_or(f64::INFINITY);
            number(x.expr.clamp(low, high))
        }
        "where" => {
            let (second, no) = (call.operand("input")?, call.operand("other")?);
            // As a method it is called on the value to keep, not on the condition.
            let (condition, yes) = if call.is_method() {
                (second, x)
            } else {
                (x, second)
            };
            Tensor {
                is_mask: yes.is_mask && no.is_mask,
                expr: condition.expr.select(yes.expr, no.expr),
            }
        }
        "sum" => number(reduce(x.expr, call, Expr::sum, Expr::sum_axis)?),
        "mean" => number(reduce(
            x.number("averaged")?,
            call,
            Expr::mean,
            Expr::mean_axis,
        )?),
        "unsqueeze" => {
            let axis = call
                .axis("dim")?
                .ok_or_else(|| Error::invalid("args", "must say where the new axis goes"))?;
            Tensor {
                expr: x.expr.unsqueeze(axis),
                is_mask: x.is_mask,
            }
        }
        "detach" => Tensor {
            expr: x.expr.detach(),
            is_mask: x.is_mask,
        },
        "float" | "double" => number(x.expr),
        "to" => {
            call.float_dtype("dtype")?;
            number(x.expr)
        }
        "full_like" => {
            let value = call.number("fill_value")?;
            let value =
                value.ok_or_else(|| Error::invalid("args", "must give a number to fill with"))?;
            filled(x.expr, value, call)?
        }
        "zeros_like" => filled(x.expr, 0.0, call)?,
        "ones_like" => filled(x.expr, 1.0, call)?,
        "and_" | "logical_and" => mask(x.truth("and")? * call.operand("other")?.truth("and")?),
        "or_" | "logical_or" => mask(x.truth("or")?.max(call.operand("other")?.truth("or")?)),
        "invert" | "logical_not" => mask(1.0 - x.truth("not")?),
        _ => return Ok(None),
    }))
}

fn reduce(
    x: Expr,
    call: &mut Call<'_>,
    all: impl Fn(&Expr) -> Expr,
    along: impl Fn(&Expr, i64) -> Expr,
) -> Result<Expr> {
    let axis = call.axis("dim")?;
    let keep = call.flag("keepdim")?;
    match axis {
        None if keep => Err(Error::invalid("kwargs.keepdim", "needs an axis to keep")),
        None => Ok(all(&x)),
        Some(axis) if keep => Ok(along(&x, axis).unsqueeze(axis)),
        Some(axis) => Ok(along(&x, axis)),
    }
}

/// A constant in the shape of `like`.
fn filled(like: Expr, value: f64, call: &mut Call<'_>) -> Result<Tensor> {
    call.float_dtype_if_given("dtype")?;
    Ok(number(like.eq(&like).select(value, value)))
}

fn number(expr: Expr) -> Tensor {
    Tensor {
        expr,
        is_mask: false,
    }
}

fn mask(expr: Expr) -> Tensor {
    Tensor {
        expr,
        is_mask: true,
    }
}

/// The loss and the metrics: `{"tuple": [{"ref": …}, {"dict": {…}}]}`.
fn read_output(node: &CustomLossNode, tensors: &Tensors) -> Result<(Expr, Vec<(String, Expr)>)> {
    if node.op != CustomLossOp::Output {
        return Err(Error::invalid("op", "of the last node must be output"));
    }
    let shape_error = || {
        Error::invalid(
            "args",
            "must be one tuple of the loss and a dict of metrics",
        )
    };
    let [output] = node.args.as_slice() else {
        return Err(shape_error());
    };
    let parts = output.get("tuple").unwrap_or(output).as_array();
    let Some([loss, metrics]) = parts.map(Vec::as_slice) else {
        return Err(shape_error());
    };
    let metrics = metrics
        .get("dict")
        .and_then(Value::as_object)
        .ok_or_else(shape_error)?;
    let loss = read_ref(loss, tensors)?;
    let metrics = metrics
        .iter()
        .map(|(key, value)| {
            if metric_key(key)? != *key {
                return Err(Error::invalid(
                    "metric",
                    format!("{key:?} must start with custom/"),
                ));
            }
            Ok((key.clone(), read_ref(value, tensors)?))
        })
        .collect::<Result<_>>()?;
    Ok((loss, metrics))
}

fn read_ref(value: &Value, tensors: &Tensors) -> Result<Expr> {
    let name = value.get("ref").and_then(Value::as_str);
    name.and_then(|name| tensors.get(name))
        .map(|tensor| tensor.expr.clone())
        .ok_or_else(|| Error::invalid("args", "the loss and each metric must refer to a node"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::loss::CustomLoss;
    use crate::types::{Datum, TensorData};

    /// A graph over `logprobs` and `a` whose nodes between placeholders and output are given as
    /// `[op, name, target, args, kwargs]`; the last one's name is the loss.
    fn graph(nodes: Value) -> LossGraph {
        let mut all = vec![
            json!({"op": "placeholder", "name": "logprobs", "target": "logprobs"}),
            json!({"op": "placeholder", "name": "a", "target": "a"}),
        ];
        let nodes = nodes.as_array().unwrap().clone();
        for node in &nodes {
            all.push(json!({
                "op": node[0], "name": node[1], "target": node[2], "args": node[3],
                "kwargs": node.get(4).cloned().unwrap_or(json!({})),
            }));
        }
        let loss = nodes
            .last()
            .map_or(json!("logprobs"), |node| node[1].clone());
        all.push(json!({
            "op": "output", "name": "output", "target": "output",
            "args": [{"tuple": [{"ref": loss}, {"dict": {}}]}],
        }));
        let inputs = json!([{"name": "logprobs", "rank": 1}, {"name": "a", "rank": 1}]);
        serde_json::from_value(
            json!({"name": "test", "inputs": inputs, "graph": {"format": 1, "nodes": all}}),
        )
        .unwrap()
    }

    /// The graph's loss for logprobs `[1, 2]` and `a` `[2, 1]`.
    fn run(nodes: Value) -> Result<f64> {
        let datum = Datum::new(vec![0]).with("a", vec![2.0f32, 1.0]);
        let logprobs = [TensorData::from(vec![1.0f32, 2.0])];
        let objective = graph(nodes).to_objective()?;
        Ok(objective.evaluate(&[datum], &logprobs)?.loss)
    }

    #[test]
    fn pytorch_spellings_are_understood() {
        #[track_caller]
        fn check(mut nodes: Value, expected: f64) {
            let last = nodes.as_array().unwrap().last().unwrap()[1].clone();
            let nodes = nodes.as_array_mut().unwrap();
            let product = json!([{"ref": last}, {"ref": "logprobs"}]);
            nodes.push(json!(["call_function", "product", "operator.mul", product]));
            nodes.push(json!(["call_method", "total", "sum", [{"ref": "product"}]]));
            assert_eq!(run(json!(nodes)).unwrap(), expected);
        }
        let (x, a) = (json!({"ref": "logprobs"}), json!({"ref": "a"}));
        check(json!([["call_function", "y", "torch.square", [x]]]), 9.0);
        check(json!([["call_method", "y", "pow", [x, 2]]]), 9.0);
        check(json!([["call_method", "y", "clamp", [x], {"min": 2}]]), 6.0);
        check(json!([["call_method", "y", "clamp", [x, null, 1]]]), 3.0);
        check(
            json!([["call_function", "y", "torch.clamp", [x], {"max": {"float": "inf"}}]]),
            5.0,
        );
        check(json!([["call_function", "y", "torch.max", [x, a]]]), 6.0);
        check(
            json!([["call_method", "y", "mean", [x], {"dim": [0], "keepdim": true}]]),
            4.5,
        );
        check(json!([["call_method", "y", "sum", [x, -1]]]), 9.0);
        check(
            json!([["call_function", "y", "torch.zeros_like", [x]]]),
            0.0,
        );
        check(json!([["call_function", "y", "torch.relu", [x]]]), 5.0);
        check(
            json!([["call_function", "y", "torch.nn.functional.relu", [x], {"inplace": false}]]),
            5.0,
        );
        check(
            json!([
                ["call_function", "m", "operator.gt", [x, a]],
                ["call_method", "y", "where", [x, {"ref": "m"}, a]],
            ]),
            6.0,
        );
        check(
            json!([
                ["call_function", "m", "operator.gt", [x, a]],
                ["call_function", "n", "operator.invert", [{"ref": "m"}]],
                ["call_function", "o", "operator.or_", [{"ref": "m"}, {"ref": "n"}]],
                ["call_method", "y", "to", [{"ref": "o"}, {"dtype": "float32"}]],
            ]),
            3.0,
        );
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        #[track_caller]
        fn check(nodes: Value, expected: &str) {
            let error = run(nodes).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let (x, a) = (json!({"ref": "logprobs"}), json!({"ref": "a"}));
        check(
            json!([["call_function", "y", "os.system", ["ls"]]]),
            "graph.nodes[2].target: \"os.system\" is not understood",
        );
        check(
            json!([["call_function", "y", "torch.load", [x]]]),
            "\"torch.load\" is not understood",
        );
        check(
            json!([["call_method", "y", "backward", [x]]]),
            "\"backward\" is not understood",
        );
        check(
            json!([["call_module", "y", "net", [x]]]),
            "graph.nodes[2].op",
        );
        check(
            json!([["get_attr", "y", "weight", []]]),
            "graph.nodes[2].op",
        );
        check(json!([["output", "y", "output", [x]]]), "graph.nodes[2].op");
        check(
            json!([["placeholder", "y", "y", []]]),
            "not the next of the declared inputs",
        );
        check(
            json!([["call_function", "a", "torch.exp", [x]]]),
            "\"a\" is taken",
        );
        check(
            json!([["call_function", "y", "torch.exp", [{"ref": "z"}]]]),
            "not an earlier node",
        );
        check(
            json!([["call_function", "y", "torch.exp", [{"ref": "y"}]]]),
            "not an earlier node",
        );
        check(json!([["call_function", "y", "torch.exp", []]]), "lack");
        check(
            json!([["call_function", "y", "torch.exp", [x, a]]]),
            "not understood here",
        );
        check(
            json!([["call_method", "y", "add", [x, a], {"alpha": 2}]]),
            "not understood here",
        );
        check(json!([["call_method", "y", "max", [x]]]), "lack \"other\"");
        check(
            json!([["call_method", "y", "sum", [x, [0, 1]]]]),
            "must be one axis",
        );
        check(
            json!([["call_method", "y", "sum", [x, 5]]]),
            "does not have axis 5",
        );
        check(json!([]), "has shape [2]");
        check(
            json!([
                ["call_function", "m", "operator.gt", [x, a]],
                ["call_method", "y", "mean", [{"ref": "m"}]],
            ]),
            "call float() on it first",
        );
    }

    #[test]
    fn declarations_are_checked() {
        #[track_caller]
        fn check(change: impl FnOnce(&mut Value), expected: &str) {
            let sum = json!([["call_method", "y", "sum", [{"ref": "logprobs"}]]]);
            let mut value = serde_json::to_value(graph(sum)).unwrap();
            change(&mut value);
            let error = serde_json::from_value::<LossGraph>(value)
                .map_err(|error| error.to_string())
                .and_then(|graph| graph.to_objective().map_err(|error| error.to_string()))
                .unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        check(|v| v["inputs"] = json!([]), "must start with logprobs");
        check(
            |v| v["inputs"][0]["rank"] = json!(0),
            "must start with logprobs",
        );
        check(
            |v| v["inputs"][1]["name"] = json!("logprobs"),
            "appears twice",
        );
        check(|v| v["inputs"][1]["name"] = json!("A"), "must match");
        check(|v| v["inputs"][1]["rank"] = json!(3), "must be 0, 1 or 2");
        check(|v| v["graph"]["format"] = json!(2), "must be 1");
        check(|v| v["graph"]["nodes"] = json!([]), "is empty");
        check(
            |v| v["graph"]["nodes"] = json!(vec![v["graph"]["nodes"][0].clone(); MAX_NODES + 1]),
            "too many",
        );
        check(
            |v| v["inputs"] = json!(vec![json!({"name": "logprobs", "rank": 1}); MAX_INPUTS + 1]),
            "too many",
        );
        check(
            |v| drop(v["graph"]["nodes"].as_array_mut().unwrap().remove(1)),
            "no placeholder",
        );
        check(
            |v| drop(v["graph"]["nodes"].as_array_mut().unwrap().pop()),
            "must be output",
        );
        let output = |v: &mut Value, args: Value| v["graph"]["nodes"][3]["args"] = args;
        check(|v| output(v, json!([])), "one tuple");
        check(|v| output(v, json!([{"ref": "y"}])), "one tuple");
        check(
            |v| output(v, json!([{"tuple": [1.0, {"dict": {}}]}])),
            "must refer to a node",
        );
        check(
            |v| {
                output(
                    v,
                    json!([{"tuple": [{"ref": "y"}, {"dict": {"kl:sum": {"ref": "y"}}}]}]),
                )
            },
            "must start with custom/",
        );
        check(
            |v| {
                output(
                    v,
                    json!([{"tuple": [{"ref": "y"}, {"dict": {"custom/kl": {"ref": "y"}}}]}]),
                )
            },
            "must be up to 64",
        );
    }

    #[test]
    fn ranks_and_memory_are_bounded() {
        let sum = json!([["call_method", "y", "sum", [{"ref": "logprobs"}]]]);
        let objective = graph(sum).to_objective().unwrap();
        let matrix = TensorData::from(vec![0.0f32; 4])
            .with_shape([2, 2])
            .unwrap();
        let error = objective
            .evaluate(&[Datum::new(vec![0])], &[matrix])
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("has rank 2, but the loss declares rank 1"),
            "{error}"
        );

        let outer = json!([
            ["call_method", "column", "unsqueeze", [{"ref": "logprobs"}, -1]],
            ["call_function", "y", "operator.mul", [{"ref": "column"}, {"ref": "logprobs"}]],
            ["call_method", "z", "sum", [{"ref": "y"}]],
        ]);
        let objective = graph(outer).to_objective().unwrap();
        let long = TensorData::from(vec![0.0f32; 100_000]);
        let error = objective
            .evaluate(&[Datum::new(vec![0])], &[long])
            .unwrap_err();
        assert!(error.to_string().contains("more memory"), "{error}");
    }
}
