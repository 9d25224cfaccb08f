/** The few names that views are written with: preact's, and htm bound to it. */
import { Component, Fragment, h, render } from "../vendor/preact.js";
import {
  useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState,
} from "../vendor/preact-hooks.js";
import { batch, computed, effect, signal, untracked } from "../vendor/signals-core.js";
import { useComputed, useSignal } from "../vendor/signals.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
export {
  Component, Fragment, batch, computed, effect, h, render, signal, untracked, useCallback,
  useComputed, useEffect, useLayoutEffect, useMemo, useRef, useSignal, useState,
};
