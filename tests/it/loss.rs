//! Custom losses against PyTorch's values, and the graphs they are exported as.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use serde::Deserialize;
use serde_json::Value;
use tinker::loss::formulas::{cispo, dpo, entropy, kl_k3, ppo_clip};
use tinker::loss::{CustomLoss, DatumVars, Expr, LossGraph, LossValue, Objective, batch};
use tinker::loss::{input, logprobs};
use tinker::{Datum, ModelInput, TensorData};

const LOSSES: &str = include_str!("../fixtures/loss/losses.json");
const EXPORTED: &str = include_str!("../fixtures/loss/exported.json");

/// A loss as `tests/fixtures/loss/generate.py` computed it with PyTorch.
#[derive(Deserialize)]
struct Case {
    name: String,
    data: Vec<BTreeMap<String, Numbers>>,
    loss: f64,
    gradients: Vec<Vec<f64>>,
    metrics: BTreeMap<String, f64>,
    /// Present for losses per datum: what the Python SDK would upload.
    inputs: Option<Value>,
    graph: Option<Value>,
}

#[derive(Deserialize)]
struct Numbers {
    shape: Vec<usize>,
    data: Vec<f32>,
}

impl Numbers {
    fn tensor(&self) -> TensorData {
        let tensor = TensorData::from(self.data.clone());
        tensor.with_shape(self.shape.clone()).unwrap()
    }
}

impl Case {
    fn named(name: &str) -> Self {
        let cases: Vec<Case> = serde_json::from_str(LOSSES).unwrap();
        cases.into_iter().find(|case| case.name == name).unwrap()
    }

    fn data(&self) -> Vec<Datum> {
        let datum = |tensors: &BTreeMap<String, Numbers>| {
            let targets = vec![0i64; tensors["logprobs"].data.len()];
            let targets = TensorData::from(targets).with_shape(tensors["logprobs"].shape.clone());
            let datum =
                Datum::new(ModelInput::from_ints(vec![0])).with_target_tokens(targets.unwrap());
            let inputs = tensors.iter().filter(|(name, _)| *name != "logprobs");
            inputs.fold(datum, |datum, (name, numbers)| {
                datum.with(name, numbers.tensor())
            })
        };
        self.data.iter().map(datum).collect()
    }

    fn logprobs(&self) -> Vec<TensorData> {
        let logprobs = self.data.iter().map(|tensors| tensors["logprobs"].tensor());
        logprobs.collect()
    }

    #[track_caller]
    fn check(&self, loss: impl CustomLoss) {
        let value = loss.evaluate(&self.data(), &self.logprobs()).unwrap();
        assert_close("loss", value.loss, self.loss);
        for (index, (got, want)) in value.gradients.iter().zip(&self.gradients).enumerate() {
            assert_eq!(got.len(), want.len());
            for (&got, &want) in got.iter().zip(want) {
                assert_close(&format!("gradient of datum {index}"), got.into(), want);
            }
        }
        assert_eq!(
            value.metrics.keys().collect::<Vec<_>>(),
            self.metrics.keys().collect::<Vec<_>>()
        );
        for (name, &want) in &self.metrics {
            assert_close(name, value.metrics[name], want);
        }
    }

    /// The graph traced by the Python SDK.
    fn graph(&self) -> LossGraph {
        LossGraph {
            name: self.name.clone(),
            inputs: serde_json::from_value(self.inputs.clone().unwrap()).unwrap(),
            graph: serde_json::from_value(self.graph.clone().unwrap()).unwrap(),
        }
    }
}

#[track_caller]
fn assert_close(what: &str, got: f64, want: f64) {
    let close = (got - want).abs() <= 1e-6 * want.abs().max(1e-3);
    assert!(close, "{what}: {got} is not {want}");
}

/// The losses of the fixtures, in this crate's words.
fn objective(name: &str) -> Objective {
    let (x, old, advantages) = (logprobs(), input("old_logprobs"), input("advantages"));
    let loss: Objective = match name {
        "ppo_clip" => {
            let ratio = (&x - &old).exp();
            let outside = ratio.lt(0.8).max(ratio.gt(1.2));
            ppo_clip(&x, &old, &advantages, 0.8, 1.2)
                .sum()
                .with_metric("clipped:mean", outside.mean())
                .with_metric("ratio:sum", ratio.sum())
        }
        "cispo" => cispo(&x, &old, &advantages, 0.8, 1.2).sum().into(),
        "kl_regularised" => {
            let kl = kl_k3(&x, &input("reference"));
            (0.1 * &kl - advantages * x)
                .mean()
                .with_metric("kl:mean", kl.mean())
        }
        "distill" => {
            let p = x.softplus() / x.softplus().sum_axis(-1).unsqueeze(-1);
            let entropy = entropy(&x).sum_axis(-1);
            let likelihood = (input("weights") * p.log()).sum_axis(1).mean();
            (-likelihood - 0.01 * entropy.sum()).with_metric("entropy:mean", entropy.mean())
        }
        "everything" => everything(),
        other => panic!("no loss called {other}"),
    };
    loss.with_name(name)
}

fn everything() -> Objective {
    let (x, a, scale) = (logprobs(), input("a"), input("scale"));
    let y = x.min(&a) + 2.0 * x.max(&a) + x.clamp(-1.0, 0.5);
    let y = y + x.gt(&a).select(&x * 3.0, &a) + x.abs() * &scale + x.relu();
    let y = y + x.pow(2.0) + x.pow(3.0) + x.sigmoid() * x.tanh() + x.log_sigmoid();
    let y = y + (&x - 1.0).pow(2.0) + (&x * &x + 1.0).sqrt();
    let y = y - (x.abs() + 2.0).log() / (&a + 4.0) + Expr::constant(2.0).pow(&x);
    let y = y - (-&x).detach() * &x + x.eq(&a) * &x + x.ne(&a) + x.ge(0.0) * &x;
    let y = y + x.le(0.0) * 2.0 + (1.0 - x.lt(1.0)) + x.min(0.0) + Expr::constant(0.5).max(&x);
    (y.sum() + y.mean() * scale).with_metric("y:sum", y.detach().max(a).sum())
}

const PER_DATUM: [&str; 5] = [
    "ppo_clip",
    "cispo",
    "kl_regularised",
    "distill",
    "everything",
];

#[test]
fn losses_agree_with_pytorch() {
    for name in PER_DATUM {
        Case::named(name).check(objective(name));
    }
}

#[test]
fn dpo_agrees_with_pytorch() {
    Case::named("dpo").check(batch(|data| {
        let gain =
            |d: &DatumVars| ((d.logprobs() - d.input("reference")) * d.input("weights")).sum();
        let pairs: Vec<(Expr, Expr)> = data
            .chunks_exact(2)
            .map(|pair| (gain(&pair[0]), gain(&pair[1])))
            .collect();
        let count = pairs.len() as f64;
        let loss: Expr = pairs.iter().map(|(a, b)| dpo(a, b, 0.1)).sum();
        let wins: Expr = pairs.iter().map(|(a, b)| a.gt(b)).sum();
        (loss / count).with_metric("accuracy", wins / count)
    }));
}

#[test]
fn graphs_traced_by_the_python_sdk_run() {
    for name in PER_DATUM {
        let case = Case::named(name);
        case.check(case.graph().to_objective().unwrap());
    }
}

/// `generate.py --check` feeds these to the Python SDK's models and to PyTorch.
#[test]
fn exported_graphs_are_those_checked_with_pytorch() {
    let export = |name: &str| objective(name).to_graph(&Case::named(name).data()).unwrap();
    let exported: Vec<LossGraph> = PER_DATUM.iter().map(|name| export(name)).collect();
    let recorded: Vec<LossGraph> = serde_json::from_str(EXPORTED).unwrap();
    assert_eq!(
        exported,
        recorded,
        "{}",
        serde_json::to_string(&exported).unwrap()
    );
    for (name, graph) in PER_DATUM.iter().zip(&exported) {
        Case::named(name).check(graph.to_objective().unwrap());
    }
}

/// Formulas over `logprobs` [2, 3], `a` [3], `b` [2, 1] and `s` [].
fn formulas() -> impl Strategy<Value = Expr> {
    let leaf = prop_oneof![
        4 => Just(()).prop_map(|()| logprobs()),
        2 => prop_oneof![Just("a"), Just("b"), Just("s")].prop_map(input),
        1 => (-3.0..3.0f64).prop_map(Expr::constant),
    ];
    leaf.prop_recursive(6, 40, 3, |inner| {
        let one = (inner.clone(), 0..17usize).prop_map(|(x, op)| match op {
            0 => -x,
            1 => x.exp(),
            2 => x.log(),
            3 => x.sqrt(),
            4 => x.abs(),
            5 => x.sigmoid(),
            6 => x.log_sigmoid(),
            7 => x.softplus(),
            8 => x.tanh(),
            9 => x.relu(),
            10 => x.clamp(-0.5, 1.0),
            11 => x.clamp(f64::NEG_INFINITY, 1.0),
            12 => x.detach(),
            13 => x.sum_axis(-1),
            14 => x.mean_axis(0),
            15 => x.unsqueeze(-1),
            _ => x.mean(),
        });
        let two = (inner.clone(), inner.clone(), 0..13usize).prop_map(|(x, y, op)| match op {
            0 => x + y,
            1 => x - y,
            2 => x * y,
            3 => x / y,
            4 => x.pow(y),
            5 => x.min(y),
            6 => x.max(y),
            7 => x.gt(y),
            8 => x.ge(y),
            9 => x.lt(y),
            10 => x.le(y),
            11 => x.eq(y),
            _ => x.ne(y),
        });
        let three = (inner.clone(), inner.clone(), inner).prop_map(|(c, x, y)| c.select(x, y));
        prop_oneof![3 => one, 4 => two, 1 => three]
    })
}

/// Exact, except that NaN equals NaN.
fn text(value: LossValue) -> String {
    format!("{value:?}")
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 512,
        rng_seed: RngSeed::Fixed(5),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn export_and_parse_keep_the_meaning(x in formulas(), y in formulas()) {
        let tensor = |values: Vec<f32>, shape: &[usize]| {
            TensorData::from(values).with_shape(shape.to_vec()).unwrap()
        };
        let data = [Datum::new(ModelInput::from_ints(vec![0; 2]))
            .with_target_tokens(TensorData::from(vec![0i64; 6]).with_shape([2, 3]).unwrap())
            .with("a", tensor(vec![0.5, -1.25, 2.0], &[3]))
            .with("b", tensor(vec![1.5, -0.3], &[2, 1]))
            .with("s", tensor(vec![0.7], &[]))];
        let logprobs = [tensor(vec![-1.7, -0.6, -0.2, 0.0, 0.5, 2.1], &[2, 3])];
        let loss = (x.sum() + tinker::loss::logprobs().sum())
            .with_metric("y:mean", (y + input("s")).mean());

        match loss.to_graph(&data) {
            Err(error) => {
                // Constants where a tensor is needed are all that cannot be said.
                prop_assert!(error.to_string().contains("constant"), "{error}");
            }
            Ok(graph) => {
                let json = serde_json::to_string(&graph).unwrap();
                let graph: LossGraph = serde_json::from_str(&json).unwrap();
                let parsed = graph.to_objective().unwrap();
                let direct = loss.evaluate(&data, &logprobs).map(text).map_err(|e| e.to_string());
                let via_graph = parsed.evaluate(&data, &logprobs).map(text).map_err(|e| e.to_string());
                prop_assert_eq!(direct, via_graph, "{}", json);
            }
        }
    }
}
