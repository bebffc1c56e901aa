use tinker::ServiceClient;
use tinker::train::{Batches, Conversations, Existing, NllEvaluator, Run, Supervised, Table};

fn main() -> anyhow::Result<()> {
    let (folder, model) = ("runs/chats", "tinker-local/tiny");
    let service = ServiceClient::local_in(format!("{folder}-engine"))?; // or ServiceClient::from_env()?
    let renderer = service.create_sampling_client(model)?.renderer()?;
    let (train, test) = Conversations::read("examples/chats.jsonl")?.split(32);
    let test = NllEvaluator::new(test.datums(&renderer, None)?);
    let data = Batches::new(train.datums(&renderer, None)?, 32)?;
    let mut run = Run::open(folder, Existing::Resume)?.with_logger(Table(std::io::stderr()));
    let report = Supervised::new(model)
        .with_learning_rate(4e-3)
        .with_evaluator(test)
        .train(&service, &mut run, &data)?;
    println!("{report}");
    Ok(report.close(&service)?)
}
