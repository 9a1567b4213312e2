//! `move_ownership`: every field keeps its owner, and the server's silence is not taken for a yes.

use std::collections::{BTreeMap, BTreeSet};

use exuvia_testenv::proxy::{Fault, Match, Rule};
use exuvia_write::{Apply, Effect, Error, ErrorClass, Fate, Plan, Writer, field_paths, plan_move};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::{
    Api,
    api::{DynamicObject, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use super::Stage;

/// Who owns what: (manager, operation, subresource) to paths; and at which versions.
type Owners = BTreeMap<(String, String, String), BTreeSet<String>>;

fn owners(metadata: &ObjectMeta) -> Owners {
    let mut owners = Owners::new();
    for entry in metadata.managed_fields.iter().flatten() {
        let part = |part: &Option<String>| part.clone().unwrap_or_default();
        let key = (
            part(&entry.manager),
            part(&entry.operation),
            part(&entry.subresource),
        );
        let fields = entry.fields_v1.clone().unwrap_or_default();
        let paths = field_paths(&fields)
            .into_iter()
            .map(|path| path.join("/"))
            .collect::<Vec<_>>();
        owners.entry(key).or_default().extend(paths);
    }
    owners
}

fn versions(metadata: &ObjectMeta) -> BTreeSet<String> {
    metadata
        .managed_fields
        .iter()
        .flatten()
        .filter_map(|entry| entry.api_version.clone())
        .collect()
}

struct Scene {
    stage: Stage,
    old: String,
    new: String,
}

impl Scene {
    /// A widget stored at `v1alpha1`, the storage version being `v1`, with owners of every sort at `v1alpha1`: one that
    /// applies, one that updates, one that writes the status, and one that updates at both versions.
    async fn set(name: &str) -> Self {
        let stage = Stage::bare(name).await;
        stage.widgets.install(&stage.direct, "v1alpha1").await.unwrap();
        let group = stage.widgets.group().to_owned();
        let scene = Self {
            old: format!("{group}/v1alpha1"),
            new: format!("{group}/v1"),
            stage,
        };
        let at = |version: &str| scene.stage.widgets.api(&scene.stage.direct, version);
        let (old, new) = (at("v1alpha1"), at("v1"));
        let by = |manager: &str| PatchParams {
            field_manager: Some(manager.to_owned()),
            ..Default::default()
        };
        let applied = json!({"apiVersion": scene.old, "kind": "Widget",
            "metadata": {"name": "w", "namespace": "default"}, "spec": {"color": "red"}});
        old.patch("w", &by("applier"), &Patch::Apply(&applied))
            .await
            .unwrap();
        let update = |spec: Value| Patch::Merge(json!({"spec": spec}));
        old.patch("w", &by("updater"), &update(json!({"size": 2})))
            .await
            .unwrap();
        let status = Patch::Merge(json!({"status": {"phase": "Ready"}}));
        old.patch_status("w", &by("reporter"), &status).await.unwrap();
        old.patch("w", &by("both"), &update(json!({"parts": {"a": "1"}})))
            .await
            .unwrap();
        new.patch("w", &by("both"), &update(json!({"parts": {"b": "2"}})))
            .await
            .unwrap();
        scene.stage.flip().await;
        scene
    }

    async fn metadata(&self) -> ObjectMeta {
        self.stage.raw().get("w").await.unwrap().metadata
    }

    fn api(&self) -> Api<DynamicObject> {
        self.stage.widgets.api(&self.stage.proxied, "v1")
    }

    fn plan(&self, fate: Fate) -> impl FnMut(&[ManagedFieldsEntry]) -> Plan + use<> {
        let (old, new) = ([self.old.clone()].into(), self.new.clone());
        move |entries| plan_move(entries, &old, &new, |_| fate.clone())
    }
}

/// PITFALLS A7.
#[tokio::test]
async fn every_field_keeps_its_owner_in_the_write_that_also_re_encodes_the_object() {
    let scene = Scene::set("own-move").await;
    let before = scene.metadata().await;
    assert_eq!(versions(&before).len(), 2);

    // Would it pass?
    let dry = scene.stage.writer.dry_run();
    let rehearsed = dry
        .move_ownership(&scene.api(), &before, scene.plan(Fate::Move))
        .await
        .unwrap();
    assert!(rehearsed.exact);
    assert_eq!(scene.metadata().await, before);
    scene.stage.proxy.forget();

    let moved = scene
        .stage
        .writer
        .move_ownership(&scene.api(), &before, scene.plan(Fate::Move))
        .await
        .unwrap();
    assert_eq!((moved.effect, moved.exact), (Effect::Changed, true));
    assert_eq!(
        (
            moved.plan.moved.len(),
            moved.plan.united.len(),
            moved.plan.left.len()
        ),
        (4, 1, 0)
    );
    let after = scene.metadata().await;
    assert_eq!(versions(&after), [scene.new.clone()].into());
    assert_eq!(owners(&after), owners(&before));
    assert_eq!(after.generation, before.generation);
    let control_plane = exuvia_testenv::ControlPlane::shared().await;
    let stored = control_plane
        .stored(scene.stage.widgets.group(), "widgets")
        .count_by_version()
        .await
        .unwrap();
    assert_eq!(stored, [(scene.new.clone(), 1)].into());

    let sent = scene.stage.only_write();
    assert_eq!(
        sent.json()["metadata"]["resourceVersion"],
        json!(before.resource_version)
    );
    assert!(sent.query.contains("fieldValidation=Ignore"));
    assert!(
        sent.headers["accept"]
            .to_str()
            .unwrap()
            .contains("as=PartialObjectMetadata")
    );

    // Nothing is left to move: nothing is sent.
    scene.stage.proxy.forget();
    let again = scene
        .stage
        .writer
        .move_ownership(&scene.api(), &after, scene.plan(Fate::Move))
        .await
        .unwrap();
    assert_eq!(again.effect, Effect::Unsent);
    assert!(scene.stage.proxy.requests().is_empty());
}

/// PITFALLS A7: what the whole effort is for, with the control.
#[tokio::test]
async fn after_the_move_the_old_version_can_go_and_an_apply_still_passes() {
    for (name, moves) in [("own-drop", true), ("own-drop-control", false)] {
        let scene = Scene::set(name).await;
        let (stage, metadata) = (&scene.stage, scene.metadata().await);
        if moves {
            stage
                .writer
                .move_ownership(&scene.api(), &metadata, scene.plan(Fate::Move))
                .await
                .unwrap();
        } else {
            stage.writer.rewrite(&scene.api(), &metadata).await.unwrap();
        }
        let widgets = &stage.widgets;
        let trimmed = widgets.set_stored_versions(&stage.direct, &["v1"]).await;
        trimmed.unwrap();
        stage
            .widgets
            .drop_version(&stage.direct, "v1alpha1")
            .await
            .unwrap();
        let served = stage.widgets.api(&stage.direct, "v1alpha1");
        exuvia_testenv::until("v1alpha1 is no longer served", async || {
            served.get("w").await.is_err()
        })
        .await;
        let intent = json!({"apiVersion": scene.new, "kind": "Widget",
            "metadata": {"name": "w", "namespace": "default"}, "spec": {"color": "blue"}});
        let writer = Writer::named("applier").once();
        let (api, options) = (scene.api(), Apply::default());
        let apply = async || writer.apply(&api, &intent, &options).await;
        if moves {
            apply().await.unwrap();
        } else {
            // The endpoint of v1 may take a moment longer to forget v1alpha1 than that of v1alpha1 itself.
            let error = exuvia_testenv::until("an apply fails", async || apply().await.err()).await;
            let told = (error.class(), error.status().unwrap().code);
            assert_eq!(told, (ErrorClass::Fatal, 500), "{error}");
        }
    }
}

/// PITFALLS A22: what happens without the union.
#[tokio::test]
async fn the_control_without_the_union_loses_an_owner() {
    let scene = Scene::set("own-control").await;
    let before = scene.metadata().await;
    let mut entries = before.managed_fields.clone().unwrap();
    for entry in &mut entries {
        entry.api_version = Some(scene.new.clone());
    }
    let naive = Patch::Merge(
        json!({"metadata": {"resourceVersion": before.resource_version, "managedFields": entries}}),
    );
    scene
        .stage
        .raw()
        .patch("w", &PatchParams::default(), &naive)
        .await
        .unwrap();
    let after = owners(&scene.metadata().await);
    let both = ("both".to_owned(), "Update".to_owned(), String::new());
    assert!(after[&both].len() < owners(&before)[&both].len(), "{after:?}");
}

#[tokio::test]
async fn a_list_that_the_server_ignores_is_reported() {
    let scene = Scene::set("own-ignored").await;
    let before = scene.metadata().await;
    let mut plan = scene.plan(Fate::Move);
    let spoilt = |entries: &[ManagedFieldsEntry]| {
        let mut plan = plan(entries);
        plan.entries[0].operation = Some("Guess".to_owned());
        plan
    };
    let error = scene
        .stage
        .writer
        .move_ownership(&scene.api(), &before, spoilt)
        .await
        .unwrap_err();
    assert!(matches!(error, Error::OwnershipIgnored { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("default/w: the server ignored the managedFields"),
        "{error}"
    );
    assert_eq!(scene.stage.only_write().answer, Some(200));
    assert_eq!(owners(&scene.metadata().await), owners(&before));
    assert_eq!(versions(&scene.metadata().await), versions(&before));
}

#[tokio::test]
async fn a_stale_resource_version_is_a_409_and_a_retry_plans_again() {
    let scene = Scene::set("own-stale").await;
    let stale = scene.metadata().await;
    let by = PatchParams {
        field_manager: Some("late".to_owned()),
        ..Default::default()
    };
    let old = scene.stage.widgets.api(&scene.stage.direct, "v1alpha1");
    old.patch("w", &by, &Patch::Merge(json!({"spec": {"payload": "x"}})))
        .await
        .unwrap();

    let once = scene.stage.writer.once();
    let error = once
        .move_ownership(&scene.api(), &stale, scene.plan(Fate::Move))
        .await
        .unwrap_err();
    assert_eq!(
        (error.class(), error.status().unwrap().code),
        (ErrorClass::Conflict, 409)
    );

    let moved = scene
        .stage
        .writer
        .move_ownership(&scene.api(), &stale, scene.plan(Fate::Move))
        .await
        .unwrap();
    assert_eq!(moved.plan.moved.len(), 5, "the late one too");
    assert_eq!(versions(&scene.metadata().await), [scene.new.clone()].into());
}

#[tokio::test]
async fn a_move_whose_answer_is_lost_is_recognised() {
    let scene = Scene::set("own-lost").await;
    scene
        .stage
        .proxy
        .inject(Rule::on(Match::writes()).nth(1).then(Fault::ResetAnswer));
    let before = scene.metadata().await;
    let moved = scene
        .stage
        .writer
        .move_ownership(&scene.api(), &before, scene.plan(Fate::Move))
        .await
        .unwrap();
    assert!(moved.exact);
    scene.stage.only_write();
}

#[tokio::test]
async fn entries_can_be_dropped_or_left_one_by_one() {
    let scene = Scene::set("own-fates").await;
    let before = scene.metadata().await;
    let (old, new) = ([scene.old.clone()].into(), scene.new.clone());
    let moved = scene
        .stage
        .writer
        .move_ownership(&scene.api(), &before, |entries| {
            plan_move(entries, &old, &new, |entry| match entry.manager.as_deref() {
                Some("applier") => Fate::Drop,
                Some("updater") => Fate::Leave,
                _ => Fate::Move,
            })
        })
        .await
        .unwrap();
    assert!(moved.exact);
    let after = owners(&moved.metadata);
    assert!(!after.keys().any(|(manager, ..)| manager == "applier"));
    assert_eq!(moved.plan.left.len(), 1);
    assert_eq!(
        versions(&moved.metadata),
        [scene.old.clone(), scene.new.clone()].into()
    );
}

/// PITFALLS A22: `[]` would be ignored.
#[tokio::test]
async fn dropping_the_last_entry_strips_the_list() {
    let stage = Stage::set("own-strip").await;
    let widget = stage.widgets.widget("v1alpha1", "w");
    let old = stage.widgets.api(&stage.direct, "v1alpha1");
    let created = old.create(&PostParams::default(), &widget).await.unwrap();
    let gone = [format!("{}/v1alpha1", stage.widgets.group())].into();
    let target = format!("{}/v1", stage.widgets.group());
    let api: Api<DynamicObject> = stage.widgets.api(&stage.proxied, "v1");
    let moved = stage
        .writer
        .move_ownership(&api, &created.metadata, |entries| {
            plan_move(entries, &gone, &target, |_| Fate::Drop)
        })
        .await
        .unwrap();
    assert_eq!(
        stage.only_write().json()["metadata"]["managedFields"],
        json!([{}])
    );
    assert_eq!(moved.metadata.managed_fields, None);
    assert!(moved.exact);
}
