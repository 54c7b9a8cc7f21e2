"""What the tests ask of Houmao's own code. Runs in the environment that has its package, with
nothing of Holdfast: `python houmao_side.py WHAT FACTS`, both as JSON.
"""
# mypy: ignore-errors

import json
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

from houmao.agents.realm_controller import manifest as manifests
from houmao.agents.realm_controller import registry_models, registry_storage
from houmao.agents.realm_controller.agent_identity import derive_agent_id_from_name


def publish(name, session, manifest_path, state="active", lease_s=3600.0):
    now = datetime.now(UTC)
    stopped = state in ("stopped", "retired")
    record = registry_models.ManagedAgentRegistryRecordV3(
        agent_name=name,
        agent_id=derive_agent_id_from_name(name),
        generation_id=f"g-{name}",
        lifecycle=registry_models.RegistryLifecycleV1(
            state=state,
            relaunchable=state != "retired",
            state_updated_at=now.isoformat(),
            stopped_at=now.isoformat() if stopped else None,
            stop_reason="told to" if stopped else None,
        ),
        identity=registry_models.RegistryIdentityV1(backend="local_interactive", tool="claude"),
        runtime=registry_models.RegistryRuntimeV1(
            manifest_path=manifest_path, session_root=str(Path(manifest_path).parent)
        ),
        terminal=registry_models.RegistryTerminalV2(
            current_session_name=None if stopped else session, last_session_name=session
        ),
        liveness=None
        if stopped
        else registry_models.RegistryLivenessV1(
            published_at=now.isoformat(timespec="seconds"),
            lease_expires_at=(now + timedelta(seconds=lease_s)).isoformat(timespec="seconds"),
        ),
        mailbox=registry_models.RegistryMailboxFilesystemV1(
            transport="filesystem",
            principal_id=name,
            address=f"{name}@agents.localhost",
            filesystem_root="/mail",
            bindings_version="1",
        ),
    )
    return registry_storage.publish_managed_agent_record(record).model_dump(mode="json")


def resolve(name):
    record = registry_storage.resolve_active_managed_agent_record(name)
    return None if record is None else record.model_dump(mode="json")


def load(agent_id):
    record = registry_storage.load_managed_agent_record_by_agent_id(agent_id)
    return None if record is None else record.model_dump(mode="json")


def cleanup(dry_run=False):
    done = registry_storage.cleanup_stale_managed_agent_records(dry_run=dry_run)
    return {action.agent_id: [action.outcome, action.reason] for action in done.actions}


def load_manifest(path):
    return manifests.load_session_manifest(Path(path)).payload


def write_manifest(path, name, session, tool="claude"):
    from houmao.agents.realm_controller.models import LaunchPlan

    folder = Path(path).parent
    plan = LaunchPlan.for_joined_session(
        backend="local_interactive",
        tool=tool,
        executable=tool,
        args=[],
        working_directory=folder,
        home_env_var="CLAUDE_CONFIG_DIR",
        home_path=folder,
        env={},
        env_var_names=[],
        role_name="r",
        role_prompt="",
    )
    payload = manifests.build_session_manifest_payload(
        manifests.SessionManifestRequest(
            launch_plan=plan,
            role_name="r",
            brain_manifest_path=folder / "brain.yaml",
            backend_state={},
            agent_name=name,
            tmux_session_name=session,
            registry_generation_id=f"g-{name}",
        )
    )
    return manifests.write_session_manifest(Path(path), payload).payload


def ask_gateway(host, port, prompt="hello"):
    """What its gateway client makes of a gateway: the result, or the error, of each call."""
    from houmao.agents.realm_controller import gateway_client, gateway_models

    client = gateway_client.GatewayClient(
        endpoint=gateway_client.GatewayEndpoint(host=host, port=port)
    )
    create = gateway_models.GatewayRequestCreateV1(
        kind="submit_prompt",
        payload=gateway_models.GatewayRequestPayloadSubmitPromptV1(prompt=prompt),
    )
    calls = {
        "health": client.health,
        "status": client.status,
        "requests": lambda: client.create_request(create),
    }
    found = {}
    for name, call in calls.items():
        try:
            found[name] = call().model_dump(mode="json")
        except gateway_client.GatewayHttpError as error:
            found[name] = {"status_code": error.status_code, "error": str(error)}
    return found


def serve(url, name=None, session=None, folder=None):
    """Its passive server with one headless agent, whose tool is played: it says what it was asked.
    The prompt `wait` waits for an interrupt.
    """
    import uvicorn
    from houmao.agents.realm_controller.backends.headless_base import HeadlessInteractiveSession
    from houmao.agents.realm_controller.backends.headless_output import (
        canonical_headless_event_artifact_path,
    )
    from houmao.passive_server import headless
    from houmao.passive_server.app import create_app
    from houmao.passive_server.config import PassiveServerConfig
    from houmao.passive_server.service import PassiveServerService
    from houmao.server.managed_agents import ManagedHeadlessAuthorityRecord

    config = PassiveServerConfig(api_base_url=url, discovery_poll_interval_seconds=0.2)
    service = PassiveServerService(config=config)
    store, interrupted = service.m_headless.m_store, threading.Event()

    class Session(HeadlessInteractiveSession):
        def __init__(self):
            pass

        def send_prompt(self, prompt, *, turn_artifact_dir_name=None, **_):
            turn = store.agent_root(tracked_agent_id="t1") / "artifacts" / turn_artifact_dir_name
            if prompt == "wait":
                interrupted.wait(60)
            said = {"kind": "assistant", "message": f"you said: {prompt}", "provider": "claude"}
            canonical_headless_event_artifact_path(turn_dir=turn).write_text(
                json.dumps(said) + "\n"
            )
            (turn / "exitcode").write_text("1" if prompt == "wait" else "0")
            return []

        def interrupt(self):
            interrupted.set()
            return SimpleNamespace(detail="stopped")

        def close(self):
            pass

    app = create_app(config=config, service=service)
    if name is not None:
        now = datetime.now(UTC).isoformat()
        authority = ManagedHeadlessAuthorityRecord(
            tracked_agent_id="t1",
            backend="claude_headless",
            tool="claude",
            manifest_path=f"{folder}/manifest.json",
            session_root=folder,
            tmux_session_name=session,
            agent_def_dir=folder,
            agent_name=name,
            agent_id=derive_agent_id_from_name(name),
            created_at_utc=now,
            updated_at_utc=now,
        )
        controller = SimpleNamespace(
            backend_session=Session(),
            launch_plan=SimpleNamespace(
                tool="claude", backend="claude_headless", metadata={}, mailbox=None
            ),
        )
        handle = headless._ManagedHeadlessHandle(authority=authority, controller=controller)
        rebuild = service.m_headless._rebuild_handles

        def with_the_agent():
            rebuild()
            store.write_authority(authority)
            service.m_headless.m_handles["t1"] = handle

        service.m_headless._rebuild_handles = with_the_agent
    uvicorn.run(app, host=config.public_host, port=config.public_port, log_level="warning")


if __name__ == "__main__":
    result = globals()[sys.argv[1]](**json.loads(sys.argv[2]))
    print(json.dumps(result))
