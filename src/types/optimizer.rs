//! Optimisers: which family a model uses, and the parameters of each step.

use serde::de::{Deserializer, Error as _};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{Error, Result};

/// Parameters of one AdamW step.
///
/// ```
/// use tinker::AdamParams;
///
/// let params = AdamParams::default().with_learning_rate(3e-5).with_grad_clip_norm(1.0);
/// assert_eq!((params.beta1, params.beta2, params.eps), (0.9, 0.95, 1e-12));
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamParams {
    /// Step size. Default: 1e-4.
    pub learning_rate: f64,
    /// Decay of the running average of the gradient. Default: 0.9.
    pub beta1: f64,
    /// Decay of the running average of the squared gradient. Default: 0.95.
    pub beta2: f64,
    /// Added to the denominator, for stability. Default: 1e-12.
    pub eps: f64,
    /// Decoupled weight decay. Default: 0.
    pub weight_decay: f64,
    /// Largest global gradient norm; 0 means no clipping. Default: 0.
    pub grad_clip_norm: f64,
}

impl Default for AdamParams {
    fn default() -> Self {
        Self {
            learning_rate: 1e-4,
            beta1: 0.9,
            beta2: 0.95,
            eps: 1e-12,
            weight_decay: 0.0,
            grad_clip_norm: 0.0,
        }
    }
}

impl AdamParams {
    /// The defaults with this step size.
    pub fn learning_rate(learning_rate: f64) -> Self {
        Self::default().with_learning_rate(learning_rate)
    }

    /// Sets the step size.
    #[must_use]
    pub fn with_learning_rate(mut self, learning_rate: f64) -> Self {
        self.learning_rate = learning_rate;
        self
    }

    /// Sets the decay of both running averages.
    #[must_use]
    pub fn with_betas(mut self, beta1: f64, beta2: f64) -> Self {
        (self.beta1, self.beta2) = (beta1, beta2);
        self
    }

    /// Sets the term that keeps the denominator from vanishing.
    #[must_use]
    pub fn with_eps(mut self, eps: f64) -> Self {
        self.eps = eps;
        self
    }

    /// Sets the decoupled weight decay.
    #[must_use]
    pub fn with_weight_decay(mut self, weight_decay: f64) -> Self {
        self.weight_decay = weight_decay;
        self
    }

    /// Sets the largest global gradient norm.
    #[must_use]
    pub fn with_grad_clip_norm(mut self, norm: f64) -> Self {
        self.grad_clip_norm = norm;
        self
    }

    /// Checks that every parameter is finite. Clients call this before sending.
    ///
    /// # Errors
    ///
    /// If one is not.
    pub fn validate(&self) -> Result<()> {
        for (field, value) in [
            ("learning_rate", self.learning_rate),
            ("beta1", self.beta1),
            ("beta2", self.beta2),
            ("eps", self.eps),
            ("weight_decay", self.weight_decay),
            ("grad_clip_norm", self.grad_clip_norm),
        ] {
            check_finite(field, value)?;
        }
        Ok(())
    }
}

/// Parameters of one Dimuon step.
///
/// ```
/// use tinker::types::DimuonParams;
///
/// let params = DimuonParams::learning_rate(0.02).with_beta1(0.95);
/// assert_eq!(params.beta1, 0.95);
/// assert!(DimuonParams::learning_rate(-1.0).validate().is_err());
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DimuonParams {
    /// Step size.
    pub learning_rate: f64,
    /// Largest global gradient norm; 0 or less means no clipping. Default: 0.
    pub grad_clip_norm: f64,
    /// The momentum's decay, from 0 up to but not including 1. Default: 0.9.
    pub beta1: f64,
}

impl DimuonParams {
    /// The defaults with this step size, which must be finite and not negative.
    pub fn learning_rate(learning_rate: f64) -> Self {
        Self {
            learning_rate,
            grad_clip_norm: 0.0,
            beta1: 0.9,
        }
    }

    /// Sets the momentum's decay.
    #[must_use]
    pub fn with_beta1(mut self, beta1: f64) -> Self {
        self.beta1 = beta1;
        self
    }

    /// Sets the largest global gradient norm.
    #[must_use]
    pub fn with_grad_clip_norm(mut self, norm: f64) -> Self {
        self.grad_clip_norm = norm;
        self
    }

    /// Checks that every parameter is in its range. Clients call this before sending.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] naming the first that is not.
    pub fn validate(&self) -> Result<()> {
        check_finite("learning_rate", self.learning_rate)?;
        check_finite("grad_clip_norm", self.grad_clip_norm)?;
        let problem = |field, problem: &str, value| {
            Err(Error::invalid(
                field,
                format!("must be {problem}, got {value}"),
            ))
        };
        if self.learning_rate < 0.0 {
            return problem("learning_rate", "at least 0", self.learning_rate);
        }
        if !(0.0..1.0).contains(&self.beta1) {
            return problem("beta1", "at least 0 and below 1", self.beta1);
        }
        Ok(())
    }
}

fn check_finite(field: &str, value: f64) -> Result<()> {
    if value.is_finite() {
        return Ok(());
    }
    Err(Error::invalid(
        field,
        format!("must be finite, got {value}"),
    ))
}

/// An optimiser family this version does not know: its name and fields, passed on as they are.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimizerFamily {
    /// The family's name, which the wire calls `type`.
    pub name: String,
    /// Its other fields.
    pub fields: Map<String, Value>,
}

impl OptimizerFamily {
    /// A family by name.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            fields: Map::new(),
        }
    }

    /// Sets one of its fields.
    #[must_use]
    pub fn with(mut self, field: impl Into<String>, value: impl Into<Value>) -> Self {
        self.fields.insert(field.into(), value.into());
        self
    }

    fn from_map<E: serde::de::Error>(mut fields: Map<String, Value>) -> Result<Self, E> {
        match fields.remove("type") {
            Some(Value::String(name)) => Ok(Self { name, fields }),
            Some(other) => Err(E::custom(format_args!(
                "optimizer type is not text: {other}"
            ))),
            None => Err(E::missing_field("type")),
        }
    }
}

impl Serialize for OptimizerFamily {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_map(Some(1 + self.fields.len()))?;
        out.serialize_entry("type", &self.name)?;
        for (field, value) in &self.fields {
            out.serialize_entry(field, value)?;
        }
        out.end()
    }
}

impl<'de> Deserialize<'de> for OptimizerFamily {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::from_map(Map::deserialize(deserializer)?)
    }
}

/// The optimiser a model is created with.
///
/// ```
/// use tinker::types::{OptimizerConfig, OptimizerFamily};
///
/// assert_eq!(serde_json::to_string(&OptimizerConfig::default()).unwrap(), r#"{"type":"adamw"}"#);
/// let lion = OptimizerConfig::Other(OptimizerFamily::new("lion").with("beta", 0.5));
/// assert_eq!(serde_json::to_string(&lion).unwrap(), r#"{"type":"lion","beta":0.5}"#);
/// ```
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Default)]
pub enum OptimizerConfig {
    /// AdamW; steps take [`AdamParams`].
    #[doc(alias = "AdamOptimizerConfig")]
    #[default]
    AdamW,
    /// Dimuon, version 1; steps take [`DimuonParams`].
    #[doc(alias = "DimuonOptimizerConfig")]
    Dimuon,
    /// A family this version does not know.
    Other(OptimizerFamily),
}

impl Serialize for OptimizerConfig {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::AdamW => OptimizerFamily::new("adamw").serialize(serializer),
            Self::Dimuon => OptimizerFamily::new("dimuon")
                .with("version", 1)
                .serialize(serializer),
            Self::Other(family) => family.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for OptimizerConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let family = OptimizerFamily::deserialize(deserializer)?;
        let version_1 = || match family.fields.get("version") {
            None => family.fields.is_empty(),
            Some(version) => family.fields.len() == 1 && version.as_i64() == Some(1),
        };
        Ok(match family.name.as_str() {
            "adamw" if family.fields.is_empty() => Self::AdamW,
            "dimuon" if version_1() => Self::Dimuon,
            _ => Self::Other(family),
        })
    }
}

/// Parameters of one optimiser step, of whichever family the model uses.
///
/// ```
/// use tinker::{AdamParams, types::OptimizerParams};
/// let params: OptimizerParams = AdamParams::default().into();
/// assert!(matches!(params, OptimizerParams::Adam(_)));
/// ```
#[doc(alias = "OptimParams")]
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq)]
pub enum OptimizerParams {
    /// For a model created with [`OptimizerConfig::AdamW`].
    Adam(AdamParams),
    /// For a model created with [`OptimizerConfig::Dimuon`].
    Dimuon(DimuonParams),
    /// For a family this version does not know.
    Other(OptimizerFamily),
}

impl OptimizerParams {
    /// Checks what can be checked before sending.
    ///
    /// # Errors
    ///
    /// If a parameter is not finite or out of its range.
    pub fn validate(&self) -> Result<()> {
        match self {
            Self::Adam(params) => params.validate(),
            Self::Dimuon(params) => params.validate(),
            Self::Other(_) => Ok(()),
        }
    }
}

impl Default for OptimizerParams {
    fn default() -> Self {
        Self::Adam(AdamParams::default())
    }
}

impl From<AdamParams> for OptimizerParams {
    fn from(params: AdamParams) -> Self {
        Self::Adam(params)
    }
}

impl From<DimuonParams> for OptimizerParams {
    fn from(params: DimuonParams) -> Self {
        Self::Dimuon(params)
    }
}

impl From<OptimizerFamily> for OptimizerParams {
    fn from(family: OptimizerFamily) -> Self {
        Self::Other(family)
    }
}

/// Adam's parameters are written without a `type`, those of other families with it.
impl Serialize for OptimizerParams {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Tagged<'a> {
            r#type: &'static str,
            #[serde(flatten)]
            params: &'a DimuonParams,
        }
        match self {
            Self::Adam(params) => params.serialize(serializer),
            Self::Dimuon(params) => Tagged {
                r#type: "dimuon",
                params,
            }
            .serialize(serializer),
            Self::Other(family) => family.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for OptimizerParams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields: Map<String, Value> = Map::deserialize(deserializer)?;
        match fields.get("type").and_then(Value::as_str) {
            None => serde_json::from_value(Value::Object(fields))
                .map(Self::Adam)
                .map_err(D::Error::custom),
            Some("dimuon") => dimuon_from(fields)
                .map(Self::Dimuon)
                .map_err(D::Error::custom),
            Some(_) => OptimizerFamily::from_map(fields).map(Self::Other),
        }
    }
}

fn dimuon_from(fields: Map<String, Value>) -> Result<DimuonParams> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Raw {
        #[serde(rename = "type")]
        _type: String,
        learning_rate: f64,
        grad_clip_norm: Option<f64>,
        beta1: Option<f64>,
    }
    let raw: Raw = serde_json::from_value(Value::Object(fields))
        .map_err(|error| Error::invalid("optimizer_params", error.to_string()))?;
    let mut params = DimuonParams::learning_rate(raw.learning_rate);
    params.grad_clip_norm = raw.grad_clip_norm.unwrap_or(params.grad_clip_norm);
    params.beta1 = raw.beta1.unwrap_or(params.beta1);
    params.validate()?;
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adam_must_be_finite() {
        assert!(AdamParams::default().validate().is_ok());
        let error = AdamParams::default().with_eps(f64::NAN).validate();
        assert_eq!(
            error.unwrap_err().to_string(),
            "invalid eps: must be finite, got NaN"
        );
    }

    #[test]
    fn unknown_families_keep_their_fields() {
        #[track_caller]
        fn check(text: &str, known: bool) {
            let config: OptimizerConfig = serde_json::from_str(text).unwrap();
            assert_eq!(!matches!(config, OptimizerConfig::Other(_)), known);
            let written = serde_json::to_value(&config).unwrap();
            assert_eq!(written, serde_json::from_str::<Value>(text).unwrap());
        }
        check(r#"{"type":"adamw"}"#, true);
        check(r#"{"type":"dimuon","version":1}"#, true);
        check(r#"{"type":"dimuon","version":2}"#, false);
        check(r#"{"type":"lion","beta":0.5,"nested":{"a":null}}"#, false);
        check(r#"{"type":"adamw","new":1}"#, false);
    }

    #[test]
    fn dimuon_is_checked_when_read_too() {
        let read = |text: &str| serde_json::from_str::<OptimizerParams>(text);
        assert!(read(r#"{"type":"dimuon","learning_rate":0.1}"#).is_ok());
        assert!(read(r#"{"type":"dimuon","learning_rate":-0.1}"#).is_err());
        assert!(read(r#"{"type":"dimuon"}"#).is_err());
    }
}
