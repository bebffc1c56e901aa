//! The embedded server, seen from a plain socket.

mod chaos;
mod checkpoints;
mod data;
mod extremes;
mod growth;
mod guard;
mod http;
mod load;
mod losses;
mod memory;
mod models;
mod openai;
mod paging;
pub(crate) mod process;
mod proxy;
mod restart;
mod sampling;
mod smollm2;
mod survival;
mod training;

use serde_json::{Value, json};
use tinker::local::LocalServer;

use crate::support::http::{self as plain, Reply};

/// A session of the JSON dialect, call by call.
struct Caller {
    url: String,
    session: String,
}

impl Caller {
    #[track_caller]
    fn new(server: &LocalServer) -> Self {
        Self::at(server.base_url())
    }

    #[track_caller]
    fn at(url: String) -> Self {
        let body = json!({"tags": [], "user_metadata": {"who": "test"}, "sdk_version": "test"});
        let reply = plain::post(&url, "create_session", body).json();
        let session = reply["session_id"].as_str().unwrap().to_owned();
        Self { url, session }
    }

    #[track_caller]
    fn post(&self, path: &str, body: Value) -> Reply {
        plain::post(&self.url, path, body)
    }

    #[track_caller]
    fn ok(&self, path: &str, body: Value) -> Value {
        let reply = self.post(path, body);
        assert_eq!(
            reply.status,
            200,
            "{path}: {}",
            String::from_utf8_lossy(&reply.body)
        );
        reply.json()
    }

    #[track_caller]
    fn get(&self, path: &str) -> Value {
        let reply = plain::get(&self.url, path);
        assert_eq!(
            reply.status,
            200,
            "{path}: {}",
            String::from_utf8_lossy(&reply.body)
        );
        reply.json()
    }

    #[track_caller]
    fn base_model(&self) -> Value {
        self.get("get_server_capabilities")["supported_models"][0]["model_name"].clone()
    }

    /// Fetches the result of an accepted request, polling as clients do.
    #[track_caller]
    fn wait(&self, accepted: &Value) -> Value {
        let id = accepted["request_id"].as_str().unwrap();
        loop {
            let body = json!({"request_id": id, "allow_metadata_only": false});
            let result = self.ok("retrieve_future", body);
            if result["type"] != "try_again" {
                return result;
            }
        }
    }

    #[track_caller]
    fn call(&self, path: &str, body: Value) -> Value {
        let result = self.wait(&self.ok(path, body));
        assert_eq!(result.get("error"), None, "{path}");
        result
    }

    /// Creates model number `number` of the session.
    #[track_caller]
    fn model(&self, number: u64) -> Model<'_> {
        let body = json!({"session_id": self.session, "model_seq_id": number,
            "base_model": self.base_model(), "lora_config": {"rank": 4, "seed": 7}});
        let created = self.call("create_model", body);
        Model {
            caller: self,
            id: created["model_id"].as_str().unwrap().to_owned(),
        }
    }
}

/// A model and the bodies of its requests.
struct Model<'a> {
    caller: &'a Caller,
    id: String,
}

impl Model<'_> {
    fn pass(&self, seq_id: u64, texts: &[&str]) -> Value {
        let data: Vec<Value> = texts.iter().map(|text| datum(text)).collect();
        json!({"model_id": self.id, "seq_id": seq_id,
            "forward_backward_input": {"data": data, "loss_fn": "cross_entropy"}})
    }

    fn forward(&self, seq_id: u64, texts: &[&str]) -> Value {
        let mut body = self.pass(seq_id, texts);
        body["forward_input"] = body["forward_backward_input"].take();
        body.as_object_mut()
            .unwrap()
            .remove("forward_backward_input");
        body
    }

    fn step(&self, seq_id: u64) -> Value {
        json!({"model_id": self.id, "seq_id": seq_id, "adam_params": {"learning_rate": 0.01,
            "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0, "grad_clip_norm": 0.0}})
    }

    /// One step of training with the next two numbers; gives the loss before it.
    #[track_caller]
    fn train(&self, seq_id: &mut u64, texts: &[&str]) -> f64 {
        let pass = self
            .caller
            .ok("forward_backward", self.pass(*seq_id, texts));
        let step = self.caller.ok("optim_step", self.step(*seq_id + 1));
        *seq_id += 2;
        self.caller.wait(&step);
        let loss = self.caller.wait(&pass)["metrics"]["loss:sum"].as_f64();
        loss.unwrap()
    }
}

fn datum(text: &str) -> Value {
    let tokens: Vec<u8> = text.bytes().collect();
    let (inputs, targets) = (&tokens[..tokens.len() - 1], &tokens[1..]);
    json!({
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": inputs}]},
        "loss_fn_inputs": {
            "target_tokens": {"data": targets, "dtype": "int64", "shape": [targets.len()]},
            "weights": {"data": vec![1.0; targets.len()], "dtype": "float32"},
        },
    })
}
