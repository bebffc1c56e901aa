//! The recipe of the shipped model: one seed and synthetic data only; the number of threads makes
//! no difference.

use std::fs;
use std::time::Instant;

use safetensors::tensor::{Dtype, TensorView};

use crate::drive::sample;
use crate::local::engine::inside::{
    AdamState, Config, Gradients, Matrix, Net, Projection, Rest, RestLayer, Rng, Slot, Target,
    Weights, add, run,
};
use crate::local::engine::{AdamParams, Base, Datum, Loss, SampleRequest, builtin};
use crate::muon::Muon;
use crate::tasks::{self, Example, Style, TASKS};

const SEED: u64 = 20_261_116;
const STEPS: usize = 1800;
const EXAMPLES_PER_STEP: usize = 128;

/// The model on its way.
struct Recipe {
    weights: Weights,
    optimizer: Optimizer,
    words: Vec<&'static str>,
    rng: Rng,
    done: usize,
    /// Lends its threads and buffers only: the weights change under way.
    runner: Base,
}

impl Recipe {
    fn new(threads: usize) -> Self {
        let weights = Weights::random(Config::tiny(), SEED);
        let runner = Base::new(weights.clone(), threads).unwrap();
        Self {
            optimizer: Optimizer::new(&weights),
            weights,
            words: tasks::words(),
            rng: Rng::new(SEED),
            done: 0,
            runner,
        }
    }

    /// One step of training; gives the mean loss before it.
    fn step(&mut self) -> f64 {
        let data: Vec<Datum> = (0..EXAMPLES_PER_STEP)
            .map(|_| {
                let example = Example::random(&self.words, &mut self.rng);
                let (prompt, answer) = example.tokens(Style::random(&mut self.rng));
                tasks::datum(&prompt, &answer, 0.05)
            })
            .collect();
        let weight: f32 = data.iter().flat_map(|datum| &datum.inputs.weights).sum();
        let (runner, weights) = (&self.runner, &self.weights);
        let (output, gradients) = runner.run(|| {
            let fresh = || whole(&weights.config);
            let net = Net::new(weights, None);
            run(runner, net, &data, &Loss::CrossEntropy, Some(&fresh))
        });
        let left = 1.0 - self.done as f32 / STEPS as f32;
        self.optimizer
            .step(&mut self.weights, gradients.unwrap(), weight, left);
        self.done += 1;
        output.loss / f64::from(weight)
    }
}

/// The first steps, which are the same on any number of threads, and as they were recorded.
pub(crate) fn begins_as_recorded() {
    let mut alone = Recipe::new(1);
    let losses: Vec<f64> = (0..3).map(|_| alone.step()).collect();
    for (loss, recorded) in losses.iter().zip([5.547_638, 5.127_605, 4.537_453]) {
        assert!((loss - recorded).abs() < 1e-4, "{losses:?}");
    }
    let mut together = Recipe::new(3);
    assert_eq!(losses, [(); 3].map(|()| together.step()));
    assert!(save(&alone.weights) == save(&together.weights));
}

/// All of it: the bytes of the model's file.
pub(crate) fn make() -> Vec<u8> {
    let started = Instant::now();
    let mut recipe = Recipe::new(0);
    let mut mean = 0.0;
    while recipe.done < STEPS {
        mean = 0.98 * mean + 0.02 * recipe.step();
        if recipe.done.is_multiple_of(100) {
            let base = Base::new(round(&recipe.weights), 1).unwrap();
            let seconds = started.elapsed().as_secs();
            let report = report(&base, &recipe.words);
            println!("{} {mean:.4} {seconds} s {report}", recipe.done);
        }
    }
    save(&recipe.weights)
}

/// Greedy accuracy on each task.
fn report(base: &Base, words: &[&str]) -> String {
    let mut rng = Rng::new(1);
    let mut scores = Vec::new();
    for task in TASKS {
        let tries = 40;
        let hits = (0..tries).filter(|_| {
            let word = words[rng.below(words.len())];
            let example = match task {
                "add" => {
                    let (a, b) = (rng.below(10), rng.below(10));
                    Example::sum(a, b, a + b)
                }
                task => Example::new(task, word),
            };
            let (prompt, answer) = example.tokens(Style::random(&mut rng));
            let mut request = SampleRequest::new(prompt, answer.len());
            request.temperature = 0.0;
            sample(base, None, &request).unwrap().sequences[0].tokens == answer
        });
        scores.push(format!(
            "{task} {:.2}",
            hits.count() as f64 / f64::from(tries)
        ));
    }
    scores.join(" ")
}

/// Muon for the layers' matrices, AdamW for embedding and norms.
struct Optimizer {
    matrices: Vec<[Muon; 7]>,
    rest: AdamState,
}

impl Optimizer {
    fn new(weights: &Weights) -> Self {
        Self {
            matrices: weights.layers.iter().map(|_| Default::default()).collect(),
            rest: AdamState::default(),
        }
    }

    fn step(&mut self, weights: &mut Weights, mut gradients: Gradients, scale: f32, rate: f32) {
        let config = weights.config.clone();
        for (layer, momenta) in self.matrices.iter_mut().enumerate() {
            for (projection, muon) in Projection::ALL.into_iter().zip(momenta) {
                let (rows, cols) = projection.shape(&config);
                let Slot::Dense(gradient) = gradients.slot(Target::Layer(layer, projection)) else {
                    unreachable!("every matrix is trained");
                };
                let matrix = &mut weights.layers[layer].projections[projection as usize];
                let mut values = matrix.to_f32();
                muon.step(&mut values, gradient, rows, cols, 0.02 * rate);
                *matrix = Matrix::new(rows, cols, values);
            }
        }
        let Slot::Dense(head) = &gradients.head else {
            unreachable!("the head is trained");
        };
        let rest = gradients.rest.as_mut().unwrap();
        add(&mut rest.embed, head);
        let mut gradient: Vec<f32> = rest_of_gradients(rest).concat();
        gradient.iter_mut().for_each(|g| *g /= scale);
        let mut values = weights.embed.to_f32();
        for part in norms(weights) {
            values.extend_from_slice(part);
        }
        let params = AdamParams {
            learning_rate: f64::from(6e-3 * rate),
            ..AdamParams::default()
        };
        self.rest.step(&mut values, &gradient, &params).unwrap();
        let (embed, mut values) = values.split_at(config.vocab * config.width);
        weights.embed = Matrix::new(config.vocab, config.width, embed.to_vec());
        for part in norms(weights) {
            let (mine, others) = values.split_at(part.len());
            part.copy_from_slice(mine);
            values = others;
        }
    }
}

/// The norms, in the order in which [`rest_of_gradients`] has them after the embedding.
fn norms(weights: &mut Weights) -> Vec<&mut [f32]> {
    let mut parts = vec![&mut weights.norm[..]];
    for layer in &mut weights.layers {
        let norms = layer.head_norms.as_mut().unwrap();
        parts.extend([
            &mut layer.attention_norm[..],
            &mut layer.mlp_norm[..],
            &mut norms.q[..],
            &mut norms.k[..],
        ]);
    }
    parts
}

fn rest_of_gradients(rest: &Rest) -> Vec<&[f32]> {
    let mut parts = vec![&rest.embed[..], &rest.norm[..]];
    for layer in &rest.layers {
        parts.extend([
            &layer.attention_norm[..],
            &layer.mlp_norm,
            &layer.q_norm,
            &layer.k_norm,
        ]);
    }
    parts
}

/// Slots for every weight there is.
fn whole(config: &Config) -> Gradients {
    let mut gradients = Gradients::frozen(config);
    for layer in 0..config.layers.len() {
        for projection in Projection::ALL {
            let (rows, cols) = projection.shape(config);
            *gradients.slot(Target::Layer(layer, projection)) = Slot::Dense(vec![0.0; rows * cols]);
        }
    }
    gradients.head = Slot::Dense(vec![0.0; config.vocab * config.width]);
    let layer = RestLayer {
        attention_norm: vec![0.0; config.width],
        mlp_norm: vec![0.0; config.width],
        q_norm: vec![0.0; config.head_dim],
        k_norm: vec![0.0; config.head_dim],
    };
    gradients.rest = Some(Box::new(Rest {
        embed: vec![0.0; config.vocab * config.width],
        norm: vec![0.0; config.width],
        layers: vec![layer; config.layers.len()],
    }));
    gradients
}

/// The weights as they will be once stored in bf16.
fn round(weights: &Weights) -> Weights {
    let mut weights = weights.clone();
    let layers = weights
        .layers
        .iter_mut()
        .flat_map(|layer| &mut layer.projections);
    for matrix in layers.chain([&mut weights.embed]) {
        let values = matrix.to_f32().into_iter();
        let rounded = values.map(|value| half::bf16::from_f32(value).to_f32());
        *matrix = Matrix::new(matrix.rows(), matrix.cols(), rounded.collect());
    }
    weights
}

/// The weights as transformers names them, in bf16.
fn save(weights: &Weights) -> Vec<u8> {
    let config = &weights.config;
    let mut tensors: Vec<(String, Vec<usize>, Vec<f32>)> = vec![
        (
            "model.embed_tokens.weight".into(),
            vec![config.vocab, config.width],
            weights.embed.to_f32(),
        ),
        (
            "model.norm.weight".into(),
            vec![config.width],
            weights.norm.clone(),
        ),
    ];
    for (index, layer) in weights.layers.iter().enumerate() {
        let prefix = format!("model.layers.{index}");
        for (projection, matrix) in Projection::ALL.into_iter().zip(&layer.projections) {
            let name = format!("{prefix}.{}.weight", projection.path());
            tensors.push((name, vec![matrix.rows(), matrix.cols()], matrix.to_f32()));
        }
        let norms = layer.head_norms.as_ref().unwrap();
        for (name, values) in [
            ("input_layernorm", &layer.attention_norm),
            ("post_attention_layernorm", &layer.mlp_norm),
            ("self_attn.q_norm", &norms.q),
            ("self_attn.k_norm", &norms.k),
        ] {
            tensors.push((
                format!("{prefix}.{name}.weight"),
                vec![values.len()],
                values.clone(),
            ));
        }
    }
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|(_, _, values)| {
            values
                .iter()
                .flat_map(|v| half::bf16::from_f32(*v).to_le_bytes())
                .collect()
        })
        .collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        (
            name,
            TensorView::new(Dtype::BF16, shape.clone(), bytes).unwrap(),
        )
    });
    safetensors::serialize(views, None).unwrap()
}

/// The shipped model's answers to the tasks, to notice a damaged or forgotten file.
pub(crate) fn the_shipped_model_has_learned_its_tasks() {
    assert!(builtin::WEIGHTS.len() < 1_000_000);
    check_answers(&Base::builtin(1).unwrap());
}

/// The same of a model that was just made.
pub(crate) fn has_learned_its_tasks(weights: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), builtin::CONFIG).unwrap();
    fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    check_answers(&Base::load(folder.path(), 1).unwrap());
}

fn check_answers(base: &Base) {
    for (task, word, answer) in [
        ("copy", "garden", "garden"),
        ("reverse", "stone", "enots"),
        ("rest", "planet", "lanet"),
        ("spell", "fox", "f-o-x"),
    ] {
        let (prompt, _) = Example::new(task, word).tokens(Style::Chat);
        let mut request = SampleRequest::new(prompt, 20);
        request.temperature = 0.0;
        request.stop.tokens = base.config().eos.clone();
        let output = sample(base, None, &request).unwrap();
        let tokens = &output.sequences[0].tokens;
        assert_eq!(builtin::decode(tokens), answer.as_bytes());
    }
}
