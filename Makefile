# The commands of CONTRIBUTING.md under short names; `make` lists them.
SHELL := bash
SETUP := source deploy/setup.sh && weft_setup dev

.PHONY: help setup fast test extended ci nightly lint demo docs image wheel
help:      ## list these names
	@grep -E '^[a-z]+: *##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12
setup:     ## make .venv with the pinned versions
	@$(SETUP)
fast:      ## lint, types, tests without Spark
	bash deploy/test.sh --fast
test:      ## the full loop
	bash deploy/test.sh
extended:  ## models, simulation, broken implementations, real servers
	bash deploy/test.sh --extended
ci:        ## the full and the extended loop at once
	bash deploy/test.sh --ci
nightly:   ## hours: deep simulation, mutation testing, soak, benchmarks
	bash deploy/nightly.sh
lint:      ## ruff, import contracts, mypy
	@$(SETUP) && ruff check . && ruff format --check . && lint-imports --no-logo && mypy
demo:      ## four topics to one table, compared with a join
	bash deploy/demo.sh
docs:      ## the documentation site, into build/docs/site
	bash deploy/docs.sh
image:     ## the container image
	docker build -f deploy/docker/Dockerfile -t weft .
wheel:     ## the wheel, into dist
	@rm -rf build/lib  # modules that were deleted since the last build
	@$(SETUP) && python -m pip wheel --no-deps --wheel-dir dist .
