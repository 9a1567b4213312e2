#![allow(clippy::unwrap_used, missing_docs, clippy::all, clippy::pedantic)]
use exuvia_sweep::*;
use exuvia_testenv::*;
use exuvia_write::*;
use futures::StreamExt;
use kube::api::*;
use std::time::Instant;
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bench() {
    let n: usize = std::env::var("N").unwrap().parse().unwrap();
    let cp = ControlPlane::shared().await;
    let c = cp.client().unwrap();
    let w = Widgets::in_group("bench.example.com");
    w.install(&c, "v1alpha1").await.unwrap();
    let api = w.api(&c, "v1alpha1");
    futures::stream::iter(0..n)
        .for_each_concurrent(16, |i| {
            let (api, w) = (&api, &w);
            async move {
                let mut o = w.widget("v1alpha1", &format!("widget-{i:06}"));
                o.data["spec"]["payload"] = serde_json::json!("x".repeat(2000));
                api.create(&PostParams::default(), &o).await.unwrap();
            }
        })
        .await;
    let writer = Writer::named("b");
    let mut storage = "v1";
    let mut flip = || {
        let s = storage;
        storage = if s == "v1" { "v1alpha1" } else { "v1" };
        s
    };
    for round in 0..2 {
        for fixed in [32usize, 0, 8, 0] {
            w.flip_storage(&c, flip()).await.unwrap();
            tokio::time::sleep(std::time::Duration::from_secs(4)).await;
            let client = writer.connect(cp.admin().config().unwrap()).unwrap();
            let api: Api<DynamicObject> = Api::all_with(client.clone(), &w.resource("v1"));
            let (writer, api) = (&writer, &api);
            while api.list_metadata(&ListParams::default().limit(5)).await.is_err() {
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
            Sweep::of(client.clone(), &w.resource("v1"))
                .run(|_| std::future::ready(Verdict::skipped()))
                .await
                .unwrap();
            let t = Instant::now();
            if fixed > 0 && fixed < 100 {
                let m = std::sync::Mutex::new(vec![]);
                Sweep::of(client.clone(), &w.resource("v1"))
                    .run(|o| {
                        m.lock().unwrap().push(o);
                        std::future::ready(Verdict::skipped())
                    })
                    .await
                    .unwrap();
                let metas = m.into_inner().unwrap();
                let t = Instant::now();
                futures::stream::iter(metas)
                    .for_each_concurrent(fixed, |m| async move {
                        assert_eq!(
                            writer.rewrite(api, &m.metadata).await.unwrap().effect,
                            Effect::Changed
                        );
                    })
                    .await;
                println!(
                    "{round} fixed {fixed}: {:.0}/s",
                    n as f64 / t.elapsed().as_secs_f64()
                );
            } else {
                let s =
                    Sweep::of(client, &w.resource("v1")).max_concurrency(if fixed == 100 { 64 } else { 32 });
                let mut p = s.progress();
                let j = tokio::spawn(async move {
                    let mut v = vec![];
                    while p.changed().await.is_ok() {
                        let x = p.borrow_and_update().clone();
                        v.push((x.concurrency, x.rate as u64));
                        if v.len() < 40 {
                            print!("{}/{} ", x.done(), x.concurrency);
                        }
                    }
                    v
                });
                let r = s
                    .run(|o| async move {
                        match writer.rewrite(api, &o.metadata).await {
                            Ok(w) if w.effect == Effect::Changed => Verdict::rewritten(),
                            Ok(_) => Verdict::current(),
                            Err(e) => Verdict::failed(e.class().as_str(), e.to_string()),
                        }
                    })
                    .await
                    .unwrap();
                println!(
                    "{round} sweep max {}: {:.0}/s {:?} peak {} last {}",
                    if fixed == 100 { 64 } else { 32 },
                    n as f64 / t.elapsed().as_secs_f64(),
                    r.tally,
                    r.peak_concurrency,
                    r.last_concurrency
                );
                let v = j.await.unwrap();
                let mut last = 0;
                for (i, (c, r)) in v.iter().enumerate() {
                    if *c != last {
                        print!("{i}:{c}@{r} ");
                        last = *c;
                    }
                }
                println!();
            }
        }
    }
}
