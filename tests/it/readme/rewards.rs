use tinker::ServiceClient;
use tinker::train::rl::{EnvBatches, Grade, Problem, Rl};
use tinker::train::{Existing, Run, Table};

fn main() -> anyhow::Result<()> {
    let (folder, model) = ("runs/sums", "tinker-local/tiny");
    let service = ServiceClient::local_in(format!("{folder}-engine"))?; // or ServiceClient::from_env()?
    let tokenizer = service.create_sampling_client(model)?.tokenizer()?;
    let mut problems = Vec::new();
    for (a, b) in [(1, 2), (2, 2), (3, 1), (4, 4)] {
        let prompt = tokenizer.encode(&format!("{a} + {b} ="))?;
        let problem = Problem::new(&tokenizer, prompt, move |answer| {
            let right = answer.text.trim() == (a + b).to_string();
            Ok(Grade::answer(right, answer.ended)) // or Grade::reward(any number)
        });
        problems.push(problem.with_group_size(8).with_stop("\n").into_group());
    }
    let mut run = Run::open(folder, Existing::Resume)?.with_logger(Table(std::io::stderr()));
    let report = Rl::new(model, 4)
        .with_learning_rate(3e-3)
        .train(&service, &mut run, &EnvBatches::new(problems, 2))?;
    println!("{report}");
    Ok(report.close(&service)?)
}
