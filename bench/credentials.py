"""Owns a corpus of made-up credentials: formats, the places they turn up in, how they are encoded.
May touch nothing.
Never takes a format from the redactor's own table: what makers document is written down again.
"""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Iterator
from typing import NamedTuple

from supervisor.logs.redact.samples import filled

FORMATS: dict[str, tuple[str, ...]] = {
    "aws-access-key-id": ("AKIA{b32:16}", "ASIA{b32:16}", "ABIA{b32:16}", "ACCA{b32:16}"),
    "aws-bedrock-key": ("ABSK{b62:109-265}=", "ABSK{b64:112}=="),
    "aws-bedrock-short-key": ("bedrock-api-key-{b62:200-400}==",),
    "gcp-api-key": ("AIza{url:35}", "AIzaSy{url:33}"),
    "gemini-api-key": ("AQ.Ab8RN6{url:44}",),
    "gcp-oauth-access-token": ("ya29.{url:60-200}", "ya29.a0{url:160}"),
    "gcp-oauth-refresh-token": ("1//0{url:40-100}", "1//03{url:90}"),
    "gcp-oauth-client-secret": ("GOCSPX-{url:28}",),
    "azure-ad-client-secret": ("{b62:3}{dig:1}Q~{b62:31-34}", "{b62:3}7Q~{url:34}"),
    "azure-sas-signature": (
        "?sv=2023-01-03&sr=c&sig={b62:43}%3D",
        "&sp=rl&sig={b62:20}%2B{b62:22}%3D&se=2027",
    ),
    "github-pat": ("ghp_{b62:36}",),
    "github-oauth": ("gho_{b62:36}",),
    "github-user-token": ("ghu_{b62:36}",),
    "github-app-token": ("ghs_{b62:36}", "ghs_{dig:6-8}_eyJ{url:40}.eyJ{url:200-300}.{url:86}"),
    "github-refresh-token": ("ghr_{b62:36-76}",),
    "github-fine-grained-pat": ("github_pat_{b62:22}_{b62:59}",),
    "gitlab-pat": ("glpat-{url:20}", "glpat-{url:27-300}.{low:2}.{low:9}"),
    "gitlab-deploy-token": ("gldt-{url:20}",),
    "gitlab-runner-token": ("glrt-{url:20}", "glrt-t1_{url:20}"),
    "gitlab-ci-job-token": ("glcbt-{hex:1-5}_{url:20}",),
    "gitlab-trigger-token": ("glptt-{hex:40}",),
    "gitlab-feed-token": ("glft-{url:20}",),
    "gitlab-incoming-mail-token": ("glimt-{url:25}",),
    "gitlab-agent-token": ("glagent-{url:50}",),
    "gitlab-oauth-secret": ("gloas-{url:64}",),
    "gitlab-scim-token": ("glsoat-{url:20}",),
    "gitlab-feature-flag-token": ("glffct-{url:20}",),
    "gitlab-runner-registration": ("GR1348941{url:20}",),
    "slack-bot-token": ("xoxb-{dig:10-13}-{dig:10-13}-{b62:24-34}",),
    "slack-user-token": ("xoxp-{dig:10-13}-{dig:10-13}-{dig:10-13}-{hex:28-34}", "xoxr-{dig:12}-{b62:24}"),
    "slack-client-token": ("xoxc-{dig:10-13}-{dig:10-13}-{dig:10-13}-{hex:64}",),
    "slack-cookie": ("xoxd-{b62:100-200}", "xoxd-{b62:60}%2B{b62:80}%3D"),
    "slack-app-token": ("xapp-1-A{up:10}-{dig:13}-{low:64}",),
    "slack-config-token": ("xoxe.xoxp-1-{up:163-166}", "xoxe.xoxb-1-{up:163-166}"),
    "slack-config-refresh-token": ("xoxe-1-{up:146}",),
    "slack-webhook": (
        "https://hooks.slack.com/services/T{up:8-10}/B{up:8-10}/{b62:23-25}",
        "https://hooks.slack.com/workflows/T{up:8-10}/A{up:8-10}/{dig:18}/{b62:24}",
    ),
    "teams-webhook": (
        "https://x.webhook.office.com/webhookb2/{uuid}@{uuid}/IncomingWebhook/{hex:32}/{uuid}",
    ),
    "discord-webhook": ("https://discordapp.com/api/webhooks/{dig:17-20}/{url:60-80}",),
    "discord-bot-token": (
        "MT{letters:1}{b62:20-23}.{url:6}.{url:27-38}",
        "Nz{letters:1}{b62:20-23}.{url:6}.{url:38}",
    ),
    "telegram-bot-token": ("{dig:8-10}:AA{url:33}", "{dig:9}:AA{url:32-33}"),
    "stripe-secret-key": ("sk_live_{b62:24-99}", "sk_test_{b62:24}", "rk_live_{b62:24}", "rk_prod_{b62:24}"),
    "stripe-webhook-secret": ("whsec_{b62:32}", "whsec_{b64:32}="),
    "twilio-api-key": ("SK{hex:32}",),
    "sendgrid-api-key": ("SG.{url:22}.{url:43}", "SG.{url:20-24}.{url:39-50}"),
    "mailgun-api-key": ("key-{hex:32}",),
    "mailchimp-api-key": ("{hex:32}-us{dig:1}", "{hex:32}-us{dig:2}"),
    "brevo-api-key": ("xkeysib-{hex:64}-{b62:16}",),
    "brevo-smtp-key": ("xsmtpsib-{hex:64}-{b62:16}",),
    "square-access-token": ("sq0atp-{url:22}",),
    "square-oauth-secret": ("sq0csp-{url:43}",),
    "shopify-token": ("shpat_{hex:32}", "shpca_{HEX:32}", "shppa_{hex:32}", "shpss_{hex:32}"),
    "braintree-access-token": ("access_token$production${low:16}${hex:32}",),
    "openai-legacy-key": ("sk-{b62:20}T3BlbkFJ{b62:20}",),
    "openai-api-key": (
        "sk-proj-{url:74}T3BlbkFJ{url:74}",
        "sk-proj-{url:58}T3BlbkFJ{url:58}",
        "sk-proj-{url:48}",
    ),
    "openai-service-account-key": (
        "sk-svcacct-{url:58}T3BlbkFJ{url:58}",
        "sk-service-{url:20}T3BlbkFJ{url:20}",
    ),
    "openai-admin-key": ("sk-admin-{url:58}T3BlbkFJ{url:58}",),
    "anthropic-api-key": (
        "sk-ant-api03-{url:93}AA",
        "sk-ant-admin01-{url:93}AA",
        "sk-ant-oat01-{url:80-100}AA",
    ),
    "huggingface-token": ("hf_{letters:34}", "hf_{b62:34}"),
    "huggingface-org-token": ("api_org_{letters:34}",),
    "replicate-token": ("r8_{b62:37}",),
    "groq-api-key": ("gsk_{b62:52}",),
    "xai-api-key": ("xai-{b62:70-120}",),
    "perplexity-api-key": ("pplx-{b62:48}",),
    "openrouter-api-key": ("sk-or-v1-{hex:64}",),
    "nvidia-api-key": ("nvapi-{url:60-70}",),
    "together-api-key": ("tgp_v1_{url:43}",),
    "cerebras-api-key": ("csk-{low:48}",),
    "deepseek-style-key": ("sk-{hex:32}", "sk-{b62:48}"),
    "langsmith-key": ("lsv2_pt_{hex:32}_{hex:10}", "lsv2_sk_{hex:32}_{hex:10}"),
    "langfuse-secret-key": ("sk-lf-{uuid}",),
    "wandb-api-key": ("wandb_v1_{b62:77}",),
    "pinecone-api-key": ("pcsk_{b62:5-6}_{b62:63}",),
    "npm-access-token": ("npm_{b62:36}",),
    "pypi-api-token": ("pypi-AgEIcHlwaS5vcmc{url:50-200}",),
    "rubygems-api-key": ("rubygems_{hex:48}",),
    "nuget-api-key": ("oy2{low:43}",),
    "cratesio-token": ("cio{b62:32}",),
    "dockerhub-pat": ("dckr_pat_{url:27}", "dckr_oat_{url:32}"),
    "docker-swarm-token": ("SWMTKN-1-{low:50}-{low:25}", "SWMKEY-1-{b62:43}"),
    "artifactory-api-key": ("AKCp{b62:69}",),
    "vault-token": ("hvs.{url:90-120}", "hvb.{url:138-300}", "hvr.{url:24}"),
    "terraform-cloud-token": ("{b62:14}.atlasv1.{url:60-70}",),
    "pulumi-token": ("pul-{hex:40}",),
    "doppler-token": ("dp.pt.{b62:40-44}", "dp.st.dev.{b62:40-44}", "dp.ct.{b62:43}"),
    "digitalocean-token": ("dop_v1_{hex:64}", "doo_v1_{hex:64}", "dor_v1_{hex:64}"),
    "heroku-api-key": ("HRKU-AA{url:58}", "HRKU-{uuid}"),
    "flyio-token": ("FlyV1 fm2_{b64:100-300}",),
    "flyio-token-v1": ("fm1r_{b62:120}", "fm1a_{b64:200}"),
    "vercel-token": ("vcp_{url:56}", "vck_{url:56}"),
    "netlify-token": ("nfp_{b62:36}",),
    "render-api-key": ("rnd_{b62:28}",),
    "supabase-access-token": ("sbp_{hex:40}",),
    "supabase-secret-key": ("sb_secret_{url:31}",),
    "planetscale-token": ("pscale_tkn_{url:32-64}", "pscale_pw_{url:43}", "pscale_oauth_{url:43}"),
    "neon-api-key": ("napi_{b62:64}",),
    "tailscale-key": ("tskey-api-{b62:12}-{b62:32}", "tskey-auth-{b62:12}-{b62:32}"),
    "databricks-token": ("dapi{hex:32}", "dapi{hex:32}-2"),
    "newrelic-user-key": ("NRAK-{up:27}",),
    "newrelic-insert-key": ("NRII-{url:32}",),
    "newrelic-browser-key": ("NRJS-{hex:19}",),
    "sentry-org-token": ("sntrys_eyJpYXQi{b62:100-140}_{b62:43}",),
    "sentry-user-token": ("sntryu_{hex:64}",),
    "grafana-service-account": ("glsa_{b62:32}_{hex:8}",),
    "grafana-cloud-token": ("glc_{b62:60-150}",),
    "dynatrace-token": ("dt0c01.{up:24}.{up:64}",),
    "atlassian-api-token": ("ATATT3{url:186}", "ATCTT3{url:180}={HEX:8}"),
    "bitbucket-app-password": ("ATBB{b62:32}",),
    "linear-api-key": ("lin_api_{b62:40}", "lin_oauth_{b62:64}"),
    "notion-token": ("ntn_{dig:11}{b62:35}",),
    "notion-legacy-token": ("secret_{b62:43}",),
    "figma-token": ("figd_{url:38-42}",),
    "airtable-pat": ("pat{b62:14}.{hex:64}",),
    "postman-api-key": ("PMAK-{hex:24}-{hex:34}",),
    "onepassword-secret-key": (
        "A3-{up:6}-{up:6}-{up:5}-{up:5}-{up:5}",
        "A3-{up:6}-{up:11}-{up:5}-{up:5}-{up:5}",
    ),
    "onepassword-service-token": ("ops_eyJ{b62:168-250}",),
    "circleci-pat": ("CCIPAT_{b62:22}_{hex:40}",),
    "buildkite-token": ("bkua_{hex:40}", "bkaa_{b62:40}"),
    "sourcegraph-token": ("sgp_{hex:40}", "sgp_local_{hex:40}", "sgp_{hex:16}_{hex:40}"),
    "launchdarkly-sdk-key": ("sdk-{uuid}", "api-{uuid}"),
    "facebook-access-token": ("EAAC{b62:100-200}", "EAAM{b62:150}"),
    "alibaba-access-key-id": ("LTAI{b62:17-21}",),
    "openshift-token": ("sha256~{url:43}",),
    "jwt": ("eyJhbGciOiJIUzI1NiJ9.eyJ{url:40-300}.{url:43}", "eyJ{url:50}.eyJ{url:90}.{url:342}"),
    "jwe": ("eyJ{url:60}.{url:342}.{url:16}.{url:90}.{url:22}", "eyJ{url:40}..{url:16}.{url:90}.{url:22}"),
    "age-secret-key": ("AGE-SECRET-KEY-1{bech:58}",),
    "nats-seed": ("SU{b32:56}", "SA{b32:56}"),
    "aws-secret-access-key": ("aws_secret_access_key={b64:40}", "AWS_SECRET_ACCESS_KEY: '{b64:40}'"),
    "azure-storage-key": ("DefaultEndpointsProtocol=https;AccountName=x1;AccountKey={b64:86}==",),
    "azure-service-bus-key": ("SharedAccessKeyName=R;SharedAccessKey={b64:43}=",),
    "twilio-auth-token": ("TWILIO_AUTH_TOKEN={hex:32}", "twilio.auth_token: '{hex:32}'"),
    "datadog-api-key": ("DD_API_KEY={hex:32}", 'datadog_app_key = "{hex:40}"'),
    "cloudflare-api-token": ("CLOUDFLARE_API_TOKEN={url:40}", "cloudflare_api_key: {hex:37}"),
    "password-assignment": (
        'password = "{b62:10-24}!"',
        "PGPASSWORD={b62:12}",
        "spring.datasource.password={b62:14}",
        "Server=db;User Id=sa;Password={b62:6}&{b62:6};",
        '"db_passwd": "{b62:12}$"',
        "jdbc:mysql://db/app?user=app&password={b62:12}",
        "Driver={ODBC Driver};Server=db;UID=sa;PWD={b62:14};",
    ),
    "secret-assignment": (
        "client_secret={b62:32}",
        "clientSecret: '{url:40}'",
        '"session_secret": "{hex:64}"',
    ),
    "token-assignment": (
        "export DEPLOY_TOKEN={b62:24}",
        '"refreshToken": "{url:64}"',
        "--header token={hex:40}",
    ),
    "api-key-assignment": ('"api_key": "{b62:32}"', "apikey={hex:32}", "X_API_KEY: {b62:40}"),
    "cli-secret-option": ("deploy --password {b62:14} --region eu", "tool --api-key {hex:32}"),
    "netrc-password": ("machine git.example.com login bot password {b62:14}",),
    "curl-user-password": ("curl -s -u admin:{b62:12} https://example.com/x",),
    "http-authorization-bearer": ("Authorization: Bearer {url:40}", "authorization: bearer {b62:24}"),
    "http-authorization-basic": ("Authorization: Basic {userpass64}",),
    "http-authorization-other": ("Authorization: Token {hex:40}",),
    "http-cookie": ("Cookie: sid={b62:32}; theme=dark", "Set-Cookie: session={b62:40}; HttpOnly"),
    "http-api-key-header": ("X-Api-Key: {b62:32}", "x-goog-api-key: {url:39}"),
    "postgres-url": (
        "postgres://app:{b62:12}@db.example.com:5432/app",
        "postgresql+asyncpg://a:{b62:8}@{b62:4}@db/app",
    ),
    "mysql-url": ("mysql://root:{b62:12}@127.0.0.1:3306/app",),
    "mongodb-url": ("mongodb+srv://app:{b62:16}@c0.example.net/?retryWrites=true",),
    "redis-url": ("redis://:{b62:20}@cache:6379/0", "rediss://default:{b62:20}@cache:6380"),
    "amqp-url": ("amqps://app:{b62:12}@mq/vhost",),
    "http-url": ("https://bot:{b62:16}@example.com/x.git", "https://{b62:40}@example.com/x.git"),
    "private-key": (
        "-----BEGIN RSA PRIVATE KEY-----{nl}{b64:64}{nl}{b64:64}{nl}{b64:30}=={nl}"
        "-----END RSA PRIVATE KEY-----",
        "-----BEGIN OPENSSH PRIVATE KEY-----{nl}{b64:70}{nl}{b64:70}{nl}-----END OPENSSH PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----{nl}{b64:64}{nl}{b64:64}{nl}-----END PRIVATE KEY-----",
        "-----BEGIN EC PRIVATE KEY-----{nl}{b64:64}{nl}{b64:64}{nl}-----END EC PRIVATE KEY-----",
    ),
    "pgp-private-key": (
        "-----BEGIN PGP PRIVATE KEY BLOCK-----{nl}{nl}"
        "{b64:64}{nl}{b64:64}{nl}={b64:4}{nl}-----END PGP PRIVATE KEY BLOCK-----",
    ),
}


class Planted(NamedTuple):
    """format: the key in FORMATS; where: the context; secret: what must not survive; line: one log line."""

    format: str
    where: str
    secret: list[str]
    line: bytes


def secrets(variants: int, seed: int = 0) -> Iterator[tuple[str, str, list[str]]]:
    """(format, a text of it, what in the text was made up), so many of each."""
    for name, templates in FORMATS.items():
        for number in range(variants):
            yield name, *filled(templates[number % len(templates)], f"{seed}.{number}")


def contexts(text: str) -> Iterator[tuple[str, bytes]]:
    """The same text as one log line in every place and encoding that must not hide it."""

    def line(value: object) -> bytes:
        return json.dumps({"type": "text", "text": value}).encode()

    yield "after a space", line(f"see {text} here")
    yield "after a newline", line(f"see\n{text}\nhere")
    yield "after a tab", line(f"see\t{text}\there")
    yield "in quotes", line(f'x "{text}" y')
    yield "in colour", line(f"\x1b[31m{text}\x1b[0m")
    yield "in colour, raw", f"\x1b[31m{text}\x1b[0m".replace("\n", "\\n").encode()
    yield "broken by colour", line(f"{text[: len(text) // 2]}\x1b[1;32m{text[len(text) // 2 :]}")
    yield "glued to a word", line(f"prefix_{text}")
    yield "JSON in JSON", line(json.dumps({"a": f"line\n{text}\n"}))
    yield "JSON in text", line("got: " + json.dumps({"a": f"line\n{text}\n"}))
    yield "percent-encoded", line(urllib.parse.quote(f"a {text}", safe=""))
    yield "in \\u escapes", b'{"t":"' + "".join(f"\\u{ord(c):04x}" for c in text).encode() + b'"}'
    for shift in range(3):
        yield f"base64 at {shift}", line(base64.b64encode(b"abc"[:shift] + text.encode()).decode())
    yield "base64url", line(base64.urlsafe_b64encode(b"hi " + text.encode()).decode())
    wrapped = base64.b64encode(f"hello {text} world\n".encode()).decode()
    yield "base64 in lines", line("\n".join(wrapped[at : at + 76] for at in range(0, len(wrapped), 76)))


def planted(variants: int, seed: int = 0) -> Iterator[Planted]:
    for name, text, made in secrets(variants, seed):
        for where, line in contexts(text):
            yield Planted(name, where, made, line)
