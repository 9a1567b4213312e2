//! A safe write next to one that destroys somebody else's change. It works on its own `ConfigMap` in namespace `default`.
//!
//!     cargo run -p exuvia-write --example safe_write

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;

use exuvia_write::{Apply, Delete, ErrorClass, Writer};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Config};
use serde_json::json;

/// The data of a `ConfigMap`.
type Data = BTreeMap<String, String>;

#[tokio::main]
async fn main() -> ExitCode {
    match start().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error.as_ref()),
    }
}

/// Prints the error with its causes, each once: some errors repeat what is below them.
fn fail(error: &dyn Error) -> ExitCode {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let own = error.to_string();
        if !text.contains(&own) {
            text = format!("{text}: {own}");
        }
        cause = error.source();
    }
    eprintln!("error: {text}");
    ExitCode::FAILURE
}

async fn start() -> Result<(), Box<dyn Error>> {
    let [clobbered, safe] = run(Config::infer().await?).await?;
    println!("after a plain replace:      {clobbered:?}   (alice's change is lost)");
    println!("after patch_with_retry:     {safe:?}");
    Ok(())
}

/// What is left of two changes to one `ConfigMap`, with a plain replace and with the writer.
pub(crate) async fn run(config: Config) -> Result<[Data; 2], Box<dyn Error>> {
    let (alice, bob) = (Writer::named("alice"), Writer::named("bob")); // field managers
    let client = bob.connect(config)?; // with timeouts, and without retries that nobody asked for
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let mut results = [Data::new(), Data::new()];
    for (index, name) in ["clobbered-prices", "safe-prices"].into_iter().enumerate() {
        let intent = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"apple": "1"}});
        let read_by_bob: ConfigMap = bob.apply(&api, &intent, &Apply::default()).await?;

        // Meanwhile alice adds a price. What bob has read is old now.
        let add_pear = |prices: &mut ConfigMap| set(prices, "pear", "3");
        alice.patch_with_retry(&api, &read_by_bob, add_pear).await?;

        let raise_apple = |prices: &mut ConfigMap| set(prices, "apple", "2");
        let written = if index == 0 {
            // The whole object, as bob has read it, and without its resourceVersion: the server takes it.
            let mut whole = read_by_bob.clone();
            raise_apple(&mut whole);
            whole.metadata.resource_version = None;
            #[allow(
                clippy::disallowed_methods,
                reason = "this is the write that one should not do"
            )]
            api.replace(name, &PostParams::default(), &whole).await?
        } else {
            // Only what changed, and only if nobody wrote since: the server refuses it with 409 …
            let refused = bob.patch(&api, &read_by_bob, raise_apple).await;
            assert!(refused.is_err_and(|error| error.class() == ErrorClass::Conflict));
            // … and this one reads again and starts over by itself.
            bob.patch_with_retry(&api, &read_by_bob, raise_apple)
                .await?
                .object
        };
        results[index] = written.data.clone().unwrap_or_default();
        bob.delete(&api, &written, &Delete::default()).await?;
    }
    Ok(results)
}

fn set(prices: &mut ConfigMap, fruit: &str, price: &str) {
    let data = prices.data.get_or_insert_default();
    data.insert(fruit.to_owned(), price.to_owned());
}
