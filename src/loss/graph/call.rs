//! The arguments of one call in a graph, taken in the order of its parameters.

use serde_json::Value;

use super::super::expr::Expr;
use super::parse::{Tensor, Tensors};
use crate::error::{Error, Result};
use crate::types::{CustomLossNode, CustomLossOp};

/// Arguments not yet taken: positional ones first, then by name.
pub(super) struct Call<'a> {
    node: &'a CustomLossNode,
    tensors: &'a Tensors,
    position: usize,
    named: usize,
}

impl<'a> Call<'a> {
    pub(super) fn new(node: &'a CustomLossNode, tensors: &'a Tensors) -> Self {
        Self {
            node,
            tensors,
            position: 0,
            named: 0,
        }
    }

    pub(super) fn is_method(&self) -> bool {
        self.node.op == CustomLossOp::CallMethod
    }

    /// The next parameter's argument, if it was given.
    fn next(&mut self, name: &str) -> Option<&'a Value> {
        if let Some(value) = self.node.args.get(self.position) {
            self.position += 1;
            return Some(value);
        }
        let value = self.node.kwargs.get(name)?;
        self.named += 1;
        Some(value)
    }

    /// A tensor or number that must be there.
    pub(super) fn operand(&mut self, name: &str) -> Result<Tensor> {
        let value = self
            .next(name)
            .ok_or_else(|| Error::invalid("args", format!("lack {name:?}")))?;
        if let Some(reference) = value.get("ref") {
            return reference
                .as_str()
                .and_then(|name| self.tensors.get(name))
                .cloned()
                .ok_or_else(|| Error::invalid("args", format!("{value} is not an earlier node")));
        }
        let number = read_number(value)
            .ok_or_else(|| Error::invalid("args", format!("{value} is not a tensor or number")))?;
        Ok(Tensor {
            expr: Expr::constant(number),
            is_mask: false,
        })
    }

    /// A number, if given and not null.
    pub(super) fn number(&mut self, name: &str) -> Result<Option<f64>> {
        match self.next(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match read_number(value) {
                Some(number) => Ok(Some(number)),
                None => Err(Error::invalid("args", format!("{name:?} must be a number"))),
            },
        }
    }

    /// One axis, if given and not null; also as a list of one.
    pub(super) fn axis(&mut self, name: &str) -> Result<Option<i64>> {
        let Some(value) = self.next(name) else {
            return Ok(None);
        };
        let list = value.get("tuple").unwrap_or(value).as_array();
        let value = match list.map(Vec::as_slice) {
            Some([only]) => only,
            _ => value,
        };
        match value {
            Value::Null => Ok(None),
            value => match value.as_i64() {
                Some(axis) => Ok(Some(axis)),
                None => Err(Error::invalid("args", format!("{name:?} must be one axis"))),
            },
        }
    }

    /// A boolean; false if not given.
    pub(super) fn flag(&mut self, name: &str) -> Result<bool> {
        match self.next(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(Error::invalid(
                "args",
                format!("{name:?} must be true or false"),
            )),
        }
    }

    /// A floating-point type, the only kind a formula computes in.
    pub(super) fn float_dtype(&mut self, name: &str) -> Result<()> {
        let dtype = self.next(name).and_then(|value| value.get("dtype"));
        match dtype.and_then(Value::as_str) {
            Some("float32" | "float" | "float64" | "double") => Ok(()),
            _ => Err(Error::invalid(
                "args",
                "only float32 and float64 are understood as types",
            )),
        }
    }

    pub(super) fn float_dtype_if_given(&mut self, name: &str) -> Result<()> {
        let given = self.position < self.node.args.len() || self.node.kwargs.contains_key(name);
        if given {
            self.float_dtype(name)
        } else {
            Ok(())
        }
    }

    /// Refuses arguments that were not taken: ignoring one would change the meaning.
    pub(super) fn finish(self) -> Result<()> {
        if self.position == self.node.args.len() && self.named == self.node.kwargs.len() {
            return Ok(());
        }
        Err(Error::invalid(
            "args",
            format!(
                "{:?} has arguments that are not understood here",
                self.node.target
            ),
        ))
    }
}

impl Tensor {
    /// The numbers, unless these are booleans.
    pub(super) fn number(self, verb: &str) -> Result<Expr> {
        if self.is_mask {
            return Err(Error::invalid(
                "args",
                format!("a comparison cannot be {verb}; call float() on it first"),
            ));
        }
        Ok(self.expr)
    }

    /// The booleans, unless these are numbers.
    pub(super) fn truth(self, verb: &str) -> Result<Expr> {
        if !self.is_mask {
            return Err(Error::invalid(
                "args",
                format!("`{verb}` is understood between comparisons only"),
            ));
        }
        Ok(self.expr)
    }
}

fn read_number(value: &Value) -> Option<f64> {
    match value.get("float").and_then(Value::as_str) {
        Some("inf") => Some(f64::INFINITY),
        Some("-inf") => Some(f64::NEG_INFINITY),
        Some("nan") => Some(f64::NAN),
        Some(_) => None,
        None => value.as_f64(),
    }
}
