//! What is advised next: commands that name the cluster as it was given, and that are not refused afterwards.

use std::sync::Mutex;
use std::time::Duration;

use exuvia_storage::droppable::{Look, Question, look};
use exuvia_testenv::ControlPlane;
use exuvia_testenv::proxy::{Match, Rule};
use http::Method;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use serde_json::json;

use super::{admin, exuvia, flipped, json_of, merge_crd, migrate, printed, text};

#[tokio::test]
async fn a_command_that_is_advised_names_the_cluster_as_it_was_given() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let crd = flipped(&client, "given.answers.io", 1).await.crd_name();
    let kubeconfig = control_plane.admin().kubeconfig().unwrap();
    let given = kubeconfig.to_str().unwrap();
    let with = format!("exuvia storage migrate {crd} --kubeconfig {given}");
    let question = ["storage", "droppable", &crd, "v1alpha1", "--no-references"];
    for before in [true, false] {
        let flag = ["--kubeconfig", given];
        let args = if before {
            [&flag[..], &question].concat()
        } else {
            [&question[..], &flag].concat()
        };
        let said = printed(&exuvia("/nonexistent".into(), &args).await);
        assert!(said.contains(&format!("run `{with}`")), "{said}");
    }
    let in_json = [&question[..], &["--kubeconfig", given, "-o", "json"]].concat();
    let said = json_of(&exuvia("/nonexistent".into(), &in_json).await);
    let message = said[0]["holders"][0]["message"].as_str().unwrap();
    assert!(message.contains(&with), "{message}");

    let done = migrate(control_plane, &[&crd, "--kubeconfig", given]).await;
    assert!(
        text(&done.stdout).contains(&format!(
            "run `exuvia storage migrate {crd} --patrol --kubeconfig {given}`"
        )),
        "{}",
        printed(&done)
    );
}

#[tokio::test]
async fn what_is_advised_for_an_excluded_crd_is_not_refused() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "advice.answers.io", 1).await;
    let crd = widgets.crd_name();
    let annotations = json!({"exuvia.dev/exclude-storage-version-migration": "not ours"});
    merge_crd(
        &client,
        &widgets,
        json!({"metadata": {"annotations": annotations}}),
    )
    .await;
    let question = ["storage", "droppable", &crd, "v1alpha1", "--no-references"];
    let said = printed(&admin(control_plane, &question).await);
    let advised = format!("exuvia storage migrate {crd} --include-excluded");
    assert!(said.contains("not ours") && said.contains(&advised), "{said}");
    let done = migrate(control_plane, &[&crd, "--include-excluded"]).await;
    assert_eq!(done.status.code(), Some(0), "{}", printed(&done));
}

#[tokio::test]
async fn a_patrol_of_a_built_in_resource_is_said_to_have_no_effect() {
    let control_plane = ControlPlane::shared().await;
    let output = migrate(
        control_plane,
        &["priorityclasses.scheduling.k8s.io", "--patrol", "--dry-run"],
    )
    .await;
    let said = text(&output.stderr);
    assert!(
        said.contains("note: --patrol has no effect on priorityclasses.scheduling.k8s.io"),
        "{said}"
    );
}

/// As when a conversion webhook is down, and the API server answers with 429 until all retries are over.
#[tokio::test]
async fn a_plan_does_not_wait_for_objects_that_cannot_be_listed() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    flipped(&client, "dead.answers.io", 1).await;
    let proxy = control_plane.proxy().await.unwrap();
    let (_never, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let lists = Match::method(Method::GET).resource("widgets");
    proxy.inject(Rule::on(lists).times(1).on_request(move |_| {
        let _ = wait.lock().unwrap().recv_timeout(Duration::from_secs(20));
    }));
    let kubeconfig = control_plane
        .admin()
        .clone()
        .at(proxy.url())
        .kubeconfig()
        .unwrap();
    let output = exuvia(kubeconfig, &["plan", "--groups", "dead.answers.io"]).await;
    let said = printed(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("its objects could not be listed within 5 s"),
        "{said}"
    );
}

#[tokio::test]
async fn several_questions_about_one_crd_are_answered_by_one_look_at_its_objects() {
    let control_plane = ControlPlane::shared().await;
    let client = control_plane.client().unwrap();
    let widgets = flipped(&client, "once.answers.io", 3).await;
    let proxy = control_plane.proxy().await.unwrap();
    let (listed, lists) = std::sync::mpsc::channel();
    proxy.inject(
        Rule::on(Match::method(Method::GET).resource("widgets"))
            .on_request(move |_| listed.send(()).unwrap()),
    );
    let through = control_plane.admin().clone().at(proxy.url()).client().unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let crd = crds.get(&widgets.crd_name()).await.unwrap();
    let question = || Question::new(crd.clone(), vec!["v1alpha1".into()]);
    let verdicts = look(&through, &[question(), question()], &Look::default(), &|_| {}).await;
    assert_eq!(verdicts.len(), 2);
    assert_eq!(verdicts[0], verdicts[1]);
    assert_eq!(lists.try_iter().count(), 1, "one page for both questions");
}
