// The parts of Apache ECharts that the report uses. README.md says how `echarts.min.js` is built from this file.
import { getInstanceByDom, init, use, version } from "echarts/core";
import { LineChart, ParallelChart, ScatterChart } from "echarts/charts";
import {
  DataZoomInsideComponent,
  GridComponent,
  LegendPlainComponent,
  ParallelComponent,
  TooltipComponent,
} from "echarts/components";
import { CanvasRenderer } from "echarts/renderers";

use([
  LineChart,
  ParallelChart,
  ScatterChart,
  DataZoomInsideComponent,
  GridComponent,
  LegendPlainComponent,
  ParallelComponent,
  TooltipComponent,
  CanvasRenderer,
]);
export { getInstanceByDom, init, version };
