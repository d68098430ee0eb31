# Two commands matter: `make dev` and `make test`. The rest serve them.
SHELL := /bin/bash
BIN   := .dev/bin
GO    ?= go
CMDS  := computectl bmcsim nodeagent
PKCS11 ?= 0

.PHONY: dev dev-reset build test lint generate verify chaos histories

dev: build ## everything on this machine, on loopback; ARGS="--nodes 1000" sizes the rack
	@exec $(BIN)/compute dev $(ARGS)

dev-reset: ## wipe the state of make dev
	@if [ -x $(BIN)/compute ]; then $(BIN)/compute dev --wipe; else rm -rf .dev; fi

build: ## PKCS11=1: compute can use CA keys in tokens; needs a C compiler
	@mkdir -p $(BIN)
	@[ -x $(BIN)/compute ] || echo "building; the first time takes some minutes"
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/ $(addprefix ./cmd/,$(CMDS))
	@CGO_ENABLED=$(PKCS11) $(GO) build -o $(BIN)/ ./cmd/compute

test: lint ## everything that must hold, with real Postgres, Temporal and ipmi_sim
	@./.ci/packages
	$(GO) test -timeout 25m ./...

lint: ## go vet, staticcheck, and the checks of tools/lint
	$(GO) vet ./...
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); echo "gofmt: the files above are not formatted"; exit 1; }
	$(GO) tool -modfile=tools/lint/go.mod staticcheck ./...
	@mkdir -p $(BIN)
	@cd tools/lint && $(GO) build -o ../../$(BIN)/lint .
	$(GO) vet -vettool=$(CURDIR)/$(BIN)/lint ./...

generate: ## golden files and what else is made from the tables
	$(GO) test ./fleet ./api ./cli -update

verify: generate ## generated files are as the tables make them
	git diff --exit-code

chaos: ## random faults under lives of machines; SEED= NODES= SECONDS=
	CHAOS_SEED=$(SEED) CHAOS_NODES=$(NODES) CHAOS_SECONDS=$(SECONDS) $(GO) test -tags chaos -count=1 -v -timeout 60m -run '^TestChaos$$' ./cmd/compute

histories: ## record one history per workflow against a real server
	$(GO) test ./workflows -run TestRecordHistories -record
