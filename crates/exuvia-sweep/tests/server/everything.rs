//! A look at every object in the cluster.

use std::sync::mpsc;

use exuvia_sweep::catalog::Catalog;
use exuvia_sweep::everything::{Visitor, look_at_everything};
use exuvia_testenv::proxy::{Answer, Fault, Match, Rule};
use exuvia_testenv::until;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams};

use super::*;

/// How many objects of each group's widgets were seen.
#[derive(Default)]
struct Groups(Mutex<BTreeMap<String, usize>>);

impl Visitor for Groups {
    async fn visit(&self, resource: &ApiResource, _: PartialObjectMeta) -> Verdict {
        *self.0.lock().unwrap().entry(resource.group.clone()).or_default() += 1;
        Verdict::skipped()
    }
}

impl Groups {
    fn of(&self, group: &str) -> usize {
        self.0.lock().unwrap().get(group).copied().unwrap_or_default()
    }
}

fn about(group: &str, unseen: &[exuvia_sweep::catalog::Unseen]) -> Vec<String> {
    unseen
        .iter()
        .map(|unseen| unseen.what.clone())
        .filter(|what| what.contains(group))
        .collect()
}

fn lists_of(group: &str) -> Match {
    Match::any().path(format!("/apis/{group}/*/widgets"))
}

#[tokio::test]
async fn a_list_that_answers_404_for_a_moment_is_asked_for_again() {
    let group = "moment.example.com";
    let setup = setup(group, 3).await;
    let not_found = Answer::status(404).text("404 page not found");
    let rule = Rule::on(lists_of(group)).times(2).then(Fault::refuse(not_found));
    let injected = setup.proxy.inject(rule);
    let groups = Groups::default();
    let looked = look_at_everything(&setup.through, &[], &|_| {}, &groups)
        .await
        .unwrap();
    assert_eq!(about(group, &looked.unseen), [""; 0]);
    assert_eq!((groups.of(group), injected.applied()), (3, 2));
    assert!(looked.extent.objects >= 3);
}

#[tokio::test]
async fn a_list_that_always_answers_404_is_not_called_empty() {
    let group = "never.example.com";
    let setup = setup(group, 3).await;
    let not_found = Answer::status(404).text("404 page not found");
    setup
        .proxy
        .inject(Rule::on(lists_of(group)).then(Fault::refuse(not_found)));
    let looked = look_at_everything(&setup.through, &[], &|_| {}, &Groups::default())
        .await
        .unwrap();
    assert_eq!(about(group, &looked.unseen), ["widgets.never.example.com"]);
}

#[tokio::test]
async fn a_resource_that_is_removed_meanwhile_has_no_objects_and_is_not_called_unseen() {
    let group = "removed.example.com";
    let setup = setup(group, 3).await;
    let crds: Api<CustomResourceDefinition> = Api::all(setup.direct.clone());
    let api = setup.widgets.api(&setup.direct, "v1");
    let (asked, mut is_asked) = tokio::sync::mpsc::unbounded_channel();
    let (done, is_done) = mpsc::channel();
    let is_done = Mutex::new(is_done);
    setup
        .proxy
        .inject(Rule::on(lists_of(group)).nth(1).on_request(move |_| {
            asked.send(()).unwrap();
            is_done.lock().unwrap().recv().unwrap();
        }));
    let remove = async {
        is_asked.recv().await.unwrap();
        crds.delete(&setup.widgets.crd_name(), &DeleteParams::default())
            .await
            .unwrap();
        until("it is not served", async || {
            let groups = setup.direct.list_api_groups().await.unwrap().groups;
            api.list(&kube::api::ListParams::default()).await.is_err()
                && !groups.iter().any(|known| known.name == group)
        })
        .await;
        done.send(()).unwrap();
    };
    let groups = Groups::default();
    let look = look_at_everything(&setup.through, &[], &|_| {}, &groups);
    let (looked, ()) = soon(async { tokio::join!(look, remove) }).await;
    let looked = looked.unwrap();
    assert_eq!(about(group, &looked.unseen), [""; 0]);
    assert_eq!(groups.of(group), 0);
}

#[tokio::test]
async fn a_kind_is_found_at_the_version_that_was_asked_for_or_at_another() {
    let group = "kinds.example.com";
    let setup = setup(group, 0).await;
    let find = async |group: &str, version: &str, kind: &str| {
        let found = Catalog::find_kind(&setup.through, group, version, kind)
            .await
            .unwrap();
        found.map(|served| (served.resource.plural, served.resource.version, served.namespaced))
    };
    for version in ["v1", "v1alpha1"] {
        let wanted = Some(("widgets".to_owned(), version.to_owned(), true));
        assert_eq!(find(group, version, "Widget").await, wanted);
    }
    assert_eq!(find(group, "v0", "Widget").await.unwrap().1, "v1");
    assert_eq!(find(group, "v1", "Gadget").await, None);
    assert_eq!(find("nobody.example.com", "v1", "Widget").await, None);
    let namespaces = ("namespaces".to_owned(), "v1".to_owned(), false);
    assert_eq!(find("", "v1", "Namespace").await, Some(namespaces));

    // What is not known is not called unserved.
    setup.proxy.inject(
        Rule::on(Match::any().path(format!("/apis/{group}/v1"))).then(Fault::refuse(Answer::status(404))),
    );
    assert!(
        Catalog::find_kind(&setup.through, group, "v1", "Gadget")
            .await
            .is_err()
    );
}
